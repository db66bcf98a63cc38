#pragma once
#include "gpu/gpu_run.h"
