/* bundled_model.h - one model of several in an image, as bundle_main.c runs it. */
#ifndef BUNDLED_MODEL_H
#define BUNDLED_MODEL_H

#include <stdint.h>

typedef struct bundled_model {
    const char *name;
    int (*init)(void);
    int (*run)(void);
    uint8_t *(*input)(void);
    const uint8_t *(*output)(void);
    const uint8_t *inputs; /* of all inferences, one after the other */
    uint32_t input_bytes, output_bytes;
} bundled_model;

extern const bundled_model bundled_models[];
extern const uint32_t bundled_count;

#endif
