# Arm MPS2+ with a Cortex-M7 (AN500).
set(AOTGEN_BOARD mps2-an500)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m7 -mthumb -mfpu=fpv5-d16 -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
