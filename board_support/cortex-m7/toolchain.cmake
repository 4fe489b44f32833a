# Cortex-M7 with its double precision FPU.
set(AOTGEN_BOARD cortex-m7)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m7 -mthumb -mfpu=fpv5-d16 -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
