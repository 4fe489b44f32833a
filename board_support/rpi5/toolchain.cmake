# Raspberry Pi 5 (4x Cortex-A76) running 64-bit Linux.
set(AOTGEN_BOARD rpi5)
set(AOTGEN_TRIPLE aarch64-linux-gnu)
set(AOTGEN_EMULATOR qemu-aarch64 -cpu cortex-a76 -L /usr/aarch64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/../linux.cmake")
