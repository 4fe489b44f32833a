# Cortex-M33 with the DSP extension and the FPU.
set(AOTGEN_BOARD cortex-m33)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m33 -mthumb -mfpu=fpv5-sp-d16 -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
