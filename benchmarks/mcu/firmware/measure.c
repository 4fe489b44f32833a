/* measure.c - see measure.h. */
#include "measure.h"

void put_text(const char *text)
{
    size_t size = 0;
    while (text[size] != '\0')
        size++;
    aot_hal_put(text, size);
}

void put_number(uint32_t value)
{
    char digits[10];
    size_t first = sizeof digits;
    do {
        digits[--first] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    aot_hal_put(digits + first, sizeof digits - first);
}

void put_line(const char *key, uint32_t value)
{
    put_text(key);
    put_text(" ");
    put_number(value);
    put_text("\n");
}

void put_output(const uint8_t *bytes, uint32_t count)
{
    put_text("out ");
    for (uint32_t k = 0; k < count; k++) {
        const char pair[2] = {"0123456789abcdef"[bytes[k] >> 4], "0123456789abcdef"[bytes[k] & 15]};
        aot_hal_put(pair, sizeof pair);
    }
    put_text("\n");
}
