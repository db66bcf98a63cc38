# Language level, warnings and sanitizers that hold for everything in the tree.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_program(SMLA_CCACHE ccache)
if(SMLA_CCACHE)
  # Precompiled headers (tests, builds for a sanitizer) are cached only with this leave.
  set(SMLA_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${SMLA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SMLA_LAUNCHER})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SMLA_LAUNCHER})
endif()

# GCC 12 warns of overlapping copies in its own std::string (-Wrestrict).
# No contraction to FMA behind the source's back: RoPE and the quantisers promise mul/mul/add (spec 2).
add_library(smla_flags INTERFACE)
target_compile_options(smla_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers -ffp-contract=off>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  # A kernel that spills registers does not build. 554: the conversion of a view to a const view, which a const view never takes.
  # Relaxed constexpr: the number formats of core/codecs.h are the same code on the device.
  $<$<COMPILE_LANGUAGE:CUDA>:-diag-suppress=554 --expt-relaxed-constexpr -Xptxas=-warn-spills,-Werror>
  # Machine code of five architectures to a fifth of its size.
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<VERSION_GREATER_EQUAL:$<CUDA_COMPILER_VERSION>,12.8>>:--compress-mode=$<IF:$<BOOL:${SMLA_GPU_EMULATOR}>,none,size>>)
if(SMLA_SANITIZE)
  target_compile_options(smla_flags INTERFACE -fsanitize=${SMLA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # clang also reports an offset to a null pointer that is never read: absent optional tensors.
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=pointer-overflow>)
  target_link_options(smla_flags INTERFACE -fsanitize=${SMLA_SANITIZE})
endif()

# What only reads options, prints or compares is compiled for the compiler's time, not for its own.
add_library(smla_quick_flags INTERFACE)
target_compile_options(smla_quick_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
