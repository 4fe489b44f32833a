"""What TFLite files may contain and aotgen does not compile yet, with more to say than that."""

from __future__ import annotations

from aotgen.frontend.tflite.registry import refuses

refuses(
    *("IF", "WHILE", "CALL", "STABLEHLO_WHILE", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE"),
    reason="control flow is not supported yet",
    remedy="export the model with the branch or loop resolved",
)
refuses(
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    reason="bidirectional recurrent layers are not supported yet",
    remedy="export the two directions as layers of their own",
)
refuses(
    "TFLite_Detection_PostProcess",
    reason="the detection post-processing is not supported yet",
    remedy="export the model without it, and decode its boxes in the application",
)
refuses(
    "DENSIFY",
    reason="sparse weights are not supported yet",
    remedy="export the model without sparsity",
)
refuses(
    *("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"),
    reason="non-maximum suppression is not supported yet",
    remedy="export the model without it, and select its boxes in the application",
)
refuses(
    *("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE", "HASHTABLE_LOOKUP"),
    reason="hash tables are not supported",
    remedy="look words up before the model",
)
refuses(
    *("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"),
    reason="random numbers are not supported",
    remedy="give them to the model as an input",
)
