# Arm MPS3 with a Cortex-M55 (AN547).
set(AOTGEN_BOARD mps3-an547)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m55 -mthumb -mfpu=auto -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
