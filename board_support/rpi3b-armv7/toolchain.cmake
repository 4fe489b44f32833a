# Raspberry Pi 3 Model B (4x Cortex-A53) running 32-bit Linux.
set(AOTGEN_BOARD rpi3b-armv7)
set(AOTGEN_TRIPLE arm-linux-gnueabihf)
set(AOTGEN_EMULATOR qemu-arm -cpu max -L /usr/arm-linux-gnueabihf)
include("${CMAKE_CURRENT_LIST_DIR}/../linux.cmake")
