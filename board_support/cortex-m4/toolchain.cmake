# Cortex-M4 with its FPU.
set(AOTGEN_BOARD cortex-m4)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
