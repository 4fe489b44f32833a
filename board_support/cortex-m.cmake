# What the toolchain files of all bare Cortex-M boards share: the Arm GNU compiler (arm-none-eabi-gcc).
# Before this the toolchain file sets:
#   AOTGEN_BOARD      its name, for aotgen_add_model
#   AOTGEN_CPU_FLAGS  a list: what chooses the core and its ABI
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
if(NOT CMAKE_C_COMPILER)
  set(CMAKE_C_COMPILER arm-none-eabi-gcc)
endif()
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_COMPILER arm-none-eabi-g++)
endif()
# A program cannot be linked without a board's linker script, so the compiler is tried on a library.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
string(REPLACE ";" " " AOTGEN_CPU_FLAGS_INIT "${AOTGEN_CPU_FLAGS}")
set(CMAKE_C_FLAGS_INIT "${AOTGEN_CPU_FLAGS_INIT}")
set(CMAKE_CXX_FLAGS_INIT "${AOTGEN_CPU_FLAGS_INIT}")
set(CMAKE_ASM_FLAGS_INIT "${AOTGEN_CPU_FLAGS_INIT}")
