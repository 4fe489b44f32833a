# Arm MPS2+ with a Cortex-M4 (AN386).
set(AOTGEN_BOARD mps2-an386)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
