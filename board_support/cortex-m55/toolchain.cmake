# Cortex-M55 with Helium (MVE) for integers and floats.
set(AOTGEN_BOARD cortex-m55)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m55 -mthumb -mfpu=auto -mfloat-abi=hard)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
