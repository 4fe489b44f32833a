# Any Cortex-M core; the flags choose the least of them, whose code runs on all.
set(AOTGEN_BOARD cortex-m)
set(AOTGEN_CPU_FLAGS -mcpu=cortex-m0plus -mthumb -mfloat-abi=soft)
include("${CMAKE_CURRENT_LIST_DIR}/../cortex-m.cmake")
