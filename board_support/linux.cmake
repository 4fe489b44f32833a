# What the toolchain files of all Linux boards share: Debian's cross compiler, the board's emulator.
# On a computer of the board's own architecture the native compiler is used. CMAKE_C_COMPILER may name another compiler
# (clang), CMAKE_CROSSCOMPILING_EMULATOR another way to run the board's programs (the `run` beside the toolchain file).
# Before this the toolchain file sets:
#   AOTGEN_BOARD     its name, for aotgen_add_model
#   AOTGEN_TRIPLE    of the compiler
#   AOTGEN_EMULATOR  the emulator and its arguments
set(CMAKE_SYSTEM_NAME Linux)
string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR "${AOTGEN_TRIPLE}")
set(CMAKE_C_COMPILER_TARGET ${AOTGEN_TRIPLE})
set(CMAKE_CXX_COMPILER_TARGET ${AOTGEN_TRIPLE})
set(CMAKE_ASM_COMPILER_TARGET ${AOTGEN_TRIPLE})

set(AOTGEN_NATIVE "^${CMAKE_SYSTEM_PROCESSOR}$")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(AOTGEN_NATIVE "^(aarch64|arm64)$")
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "arm")
  set(AOTGEN_NATIVE "^(armv7l|armv8l|arm)$")
endif()
if(NOT CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "${AOTGEN_NATIVE}")
  if(NOT CMAKE_C_COMPILER)
    set(CMAKE_C_COMPILER ${AOTGEN_TRIPLE}-gcc)
  endif()
  if(NOT CMAKE_CXX_COMPILER)
    set(CMAKE_CXX_COMPILER ${AOTGEN_TRIPLE}-g++)
  endif()
  # ctest and the project's own tools run through it.
  if(NOT CMAKE_CROSSCOMPILING_EMULATOR)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${AOTGEN_EMULATOR})
  endif()
  set(CMAKE_FIND_ROOT_PATH /usr/${AOTGEN_TRIPLE})
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
endif()
