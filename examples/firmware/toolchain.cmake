# This firmware's compiler and core. The network's library takes them from here.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(FIRMWARE_CORE "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard")
set(CMAKE_C_FLAGS_INIT "${FIRMWARE_CORE} -ffunction-sections -fdata-sections")
set(CMAKE_ASM_FLAGS_INIT "${FIRMWARE_CORE}")
