#pragma once

/* The mark of everything that the shared library exports; it means the same however the library or its user is built.
 */
#ifdef __cplusplus
#define SMLA_API [[gnu::visibility("default")]]
#else
#define SMLA_API __attribute__((visibility("default")))
#endif
