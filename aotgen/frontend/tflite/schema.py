"""The TFLite file format as data: tables, fields, unions and enums of TensorFlow Lite's schema 3.

A FlatBuffers table is a list of slots in the order of the schema. ``TABLES`` has the fields of each
table by slot, with the element type and the default of each; ``verify`` walks a file with it,
``reader`` decodes operator options with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCALARS = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
    "float32": ("f", 4),
}
"""Scalar types of the schema: their ``struct`` code and size in bytes; all are little endian."""

ENUMS: dict[str, tuple[str, ...]] = {
    "Padding": ("SAME", "VALID"),
    "ActivationFunctionType": ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT"),
    "LSHProjectionType": ("UNKNOWN", "SPARSE", "DENSE"),
    "FullyConnectedOptionsWeightsFormat": ("DEFAULT", "SHUFFLED4x16INT8"),
    "LSTMKernelType": ("FULL", "BASIC"),
    "CombinerType": ("SUM", "MEAN", "SQRTN"),
    "MirrorPadMode": ("REFLECT", "SYMMETRIC"),
    "TensorType": (
        *("FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64"),
        *("INT8", "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16"),
        *("INT4", "BFLOAT16", "INT2", "UINT4", "FLOAT8_E4M3FN", "FLOAT8_E5M2"),
    ),
}
"""Names of the enums whose values are stored as int8, by value."""

UNIONS: dict[str, tuple[str, ...]] = {
    "QuantizationDetails": (
        "",
        "CustomQuantization",
        "BlockwiseQuantization",
        "MultiAxisQuantization",
    ),
    "SparseIndexVector": ("", "Int32Vector", "Uint16Vector", "Uint8Vector"),
    "BuiltinOptions": (
        "",
        *("Conv2DOptions", "DepthwiseConv2DOptions", "ConcatEmbeddingsOptions"),
        *("LSHProjectionOptions", "Pool2DOptions", "SVDFOptions", "RNNOptions"),
        *("FullyConnectedOptions", "SoftmaxOptions", "ConcatenationOptions", "AddOptions"),
        *("L2NormOptions", "LocalResponseNormalizationOptions", "LSTMOptions"),
        *("ResizeBilinearOptions", "CallOptions", "ReshapeOptions", "SkipGramOptions"),
        *("SpaceToDepthOptions", "EmbeddingLookupSparseOptions", "MulOptions", "PadOptions"),
        *("GatherOptions", "BatchToSpaceNDOptions", "SpaceToBatchNDOptions", "TransposeOptions"),
        *("ReducerOptions", "SubOptions", "DivOptions", "SqueezeOptions", "SequenceRNNOptions"),
        *("StridedSliceOptions", "ExpOptions", "TopKV2Options", "SplitOptions"),
        *("LogSoftmaxOptions", "CastOptions", "DequantizeOptions", "MaximumMinimumOptions"),
        *("ArgMaxOptions", "LessOptions", "NegOptions", "PadV2Options", "GreaterOptions"),
        *("GreaterEqualOptions", "LessEqualOptions", "SelectOptions", "SliceOptions"),
        *("TransposeConvOptions", "SparseToDenseOptions", "TileOptions", "ExpandDimsOptions"),
        *("EqualOptions", "NotEqualOptions", "ShapeOptions", "PowOptions", "ArgMinOptions"),
        *("FakeQuantOptions", "PackOptions", "LogicalOrOptions", "OneHotOptions"),
        *("LogicalAndOptions", "LogicalNotOptions", "UnpackOptions", "FloorDivOptions"),
        *("SquareOptions", "ZerosLikeOptions", "FillOptions", "BidirectionalSequenceLSTMOptions"),
        *("BidirectionalSequenceRNNOptions", "UnidirectionalSequenceLSTMOptions"),
        *("FloorModOptions", "RangeOptions", "ResizeNearestNeighborOptions", "LeakyReluOptions"),
        *("SquaredDifferenceOptions", "MirrorPadOptions", "AbsOptions", "SplitVOptions"),
        *("UniqueOptions", "ReverseV2Options", "AddNOptions", "GatherNdOptions", "CosOptions"),
        *("WhereOptions", "RankOptions", "ReverseSequenceOptions", "MatrixDiagOptions"),
        *("QuantizeOptions", "MatrixSetDiagOptions", "HardSwishOptions", "IfOptions"),
        *("WhileOptions", "DepthToSpaceOptions", "NonMaxSuppressionV4Options"),
        *("NonMaxSuppressionV5Options", "ScatterNdOptions", "SelectV2Options", "DensifyOptions"),
        *("SegmentSumOptions", "BatchMatMulOptions", "CumsumOptions", "CallOnceOptions"),
        *("BroadcastToOptions", "Rfft2dOptions", "Conv3DOptions", "HashtableOptions"),
        *("HashtableFindOptions", "HashtableImportOptions", "HashtableSizeOptions"),
        *("VarHandleOptions", "ReadVariableOptions", "AssignVariableOptions", "RandomOptions"),
        *("BucketizeOptions", "GeluOptions", "DynamicUpdateSliceOptions"),
        *("UnsortedSegmentProdOptions", "UnsortedSegmentMaxOptions", "UnsortedSegmentMinOptions"),
        *("UnsortedSegmentSumOptions", "ATan2Options", "SignOptions", "BitcastOptions"),
        *("BitwiseXorOptions", "RightShiftOptions"),
    ),
    "BuiltinOptions2": (
        "",
        *("StablehloConcatenateOptions", "StablehloBroadcastInDimOptions"),
        *("StablehloSliceOptions", "StablehloConvolutionOptions", "StablehloCustomCallOptions"),
        *("StablehloReduceOptions", "StablehloScatterOptions", "StablehloCompareOptions"),
        *("StablehloDynamicSliceOptions", "StablehloPadOptions", "StablehloIotaOptions"),
        *("StablehloDotGeneralOptions", "StablehloReduceWindowOptions", "StablehloSortOptions"),
        *("StablehloWhileOptions", "StablehloGatherOptions", "StablehloTransposeOptions"),
        *("DilateOptions", "StablehloRngBitGeneratorOptions", "ReduceWindowOptions"),
        *("StableHLOCompositeOptions", "StablehloShiftLeftOptions", "StablehloCaseOptions"),
    ),
}
"""Tables of each union, by the value of its type field; 0 is no table."""

_TEXT = """
CustomQuantization custom:[uint8]
BlockwiseQuantization scales:int32 zero_points:int32 block_size:int32 block_shape:[int32]
MultiAxisQuantization scales:int32 zero_points:int32 block_size:int32
    quantized_dimensions:[int32]
QuantizationParameters min:[float32] max:[float32] scale:[float32] zero_point:[int64]
    details_type:union_type details:QuantizationDetails quantized_dimension:int32
Int32Vector values:[int32]
Uint16Vector values:[uint16]
Uint8Vector values:[uint8]
DimensionMetadata format:int8 dense_size:int32 array_segments_type:union_type
    array_segments:SparseIndexVector array_indices_type:union_type
    array_indices:SparseIndexVector
SparsityParameters traversal_order:[int32] block_map:[int32] dim_metadata:[DimensionMetadata]
VariantSubType shape:[int32] type:TensorType has_rank:bool
Tensor shape:[int32] type:TensorType buffer:uint32 name:string
    quantization:QuantizationParameters is_variable:bool sparsity:SparsityParameters
    shape_signature:[int32] has_rank:bool variant_tensors:[VariantSubType]
    external_buffer:uint32
StablehloGatherOptions offset_dims:[int64] collapsed_slice_dims:[int64] start_index_map:[int64]
    index_vector_dim:int64 slice_sizes:[int64] indices_are_sorted:bool
StablehloTransposeOptions permutation:[int64]
StablehloDotGeneralOptions lhs_batching_dimensions:[int64] rhs_batching_dimensions:[int64]
    lhs_contracting_dimensions:[int64] rhs_contracting_dimensions:[int64]
    precision_config:[uint32]
StablehloReduceWindowOptions window_dimensions:[int64] window_strides:[int64]
    base_dilations:[int64] window_dilations:[int64] padding:[int64] body_subgraph_index:int32
StablehloWhileOptions cond_subgraph_index:int32 body_subgraph_index:int32
StablehloSortOptions dimension:int64 is_stable:bool comparator_subgraph_index:int32
StablehloConcatenateOptions dimension:int64
StablehloBroadcastInDimOptions broadcast_dimensions:[int64]
StablehloCompareOptions comparison_direction:uint32 compare_type:uint32
StablehloDynamicSliceOptions slice_sizes:[int64]
StablehloPadOptions edge_padding_low:[int64] edge_padding_high:[int64] interior_padding:[int64]
StablehloIotaOptions iota_dimension:int64
StablehloCustomCallOptions call_target_name:string has_side_effect:bool backend_config:string
    api_version:int32 called_computations:[int32] custom_attributes:[uint8]
StablehloReduceOptions dimensions:[int64] body_subgraph_index:int32
StablehloSliceOptions start_indices:[int64] limit_indices:[int64] strides:[int64]
StablehloConvolutionOptions window_strides:[int64] padding:[int64] lhs_dilation:[int64]
    rhs_dilation:[int64] window_reversal:[bool] input_batch_dimension:int64
    input_feature_dimension:int64 input_spatial_dimensions:[int64]
    kernel_input_feature_dimension:int64 kernel_output_feature_dimension:int64
    kernel_spatial_dimensions:[int64] output_batch_dimension:int64
    output_feature_dimension:int64 output_spatial_dimensions:[int64] feature_group_count:int64
    batch_group_count:int64 precision_config:[uint32]
StablehloScatterOptions indices_are_sorted:bool update_window_dims:[int64]
    inserted_window_dims:[int64] scatter_dims_to_operand_dims:[int64] index_vector_dim:int64
    unique_indices:bool update_computation_subgraph_index:int32
StablehloCaseOptions branch_subgraph_indices:[int32]
StablehloRngBitGeneratorOptions algorithm:int8
Conv2DOptions padding:Padding stride_w:int32 stride_h:int32
    fused_activation_function:ActivationFunctionType dilation_w_factor:int32=1
    dilation_h_factor:int32=1 quantized_bias_type:TensorType
Conv3DOptions padding:Padding stride_d:int32 stride_w:int32 stride_h:int32
    fused_activation_function:ActivationFunctionType dilation_d_factor:int32=1
    dilation_w_factor:int32=1 dilation_h_factor:int32=1
Pool2DOptions padding:Padding stride_w:int32 stride_h:int32 filter_width:int32
    filter_height:int32 fused_activation_function:ActivationFunctionType
DepthwiseConv2DOptions padding:Padding stride_w:int32 stride_h:int32 depth_multiplier:int32
    fused_activation_function:ActivationFunctionType dilation_w_factor:int32=1
    dilation_h_factor:int32=1
ConcatEmbeddingsOptions num_channels:int32 num_columns_per_channel:[int32]
    embedding_dim_per_channel:[int32]
LSHProjectionOptions type:LSHProjectionType
SVDFOptions rank:int32 fused_activation_function:ActivationFunctionType
    asymmetric_quantize_inputs:bool
RNNOptions fused_activation_function:ActivationFunctionType asymmetric_quantize_inputs:bool
SequenceRNNOptions time_major:bool fused_activation_function:ActivationFunctionType
    asymmetric_quantize_inputs:bool
BidirectionalSequenceRNNOptions time_major:bool fused_activation_function:ActivationFunctionType
    merge_outputs:bool asymmetric_quantize_inputs:bool
FullyConnectedOptions fused_activation_function:ActivationFunctionType
    weights_format:FullyConnectedOptionsWeightsFormat keep_num_dims:bool
    asymmetric_quantize_inputs:bool quantized_bias_type:TensorType quant_spec:[uint8]
SoftmaxOptions beta:float32
ConcatenationOptions axis:int32 fused_activation_function:ActivationFunctionType
AddOptions fused_activation_function:ActivationFunctionType pot_scale_int16:bool=true
MulOptions fused_activation_function:ActivationFunctionType
L2NormOptions fused_activation_function:ActivationFunctionType
LocalResponseNormalizationOptions radius:int32 bias:float32 alpha:float32 beta:float32
LSTMOptions fused_activation_function:ActivationFunctionType cell_clip:float32 proj_clip:float32
    kernel_type:LSTMKernelType asymmetric_quantize_inputs:bool
UnidirectionalSequenceLSTMOptions fused_activation_function:ActivationFunctionType
    cell_clip:float32 proj_clip:float32 time_major:bool asymmetric_quantize_inputs:bool
    diagonal_recurrent_tensors:bool
BidirectionalSequenceLSTMOptions fused_activation_function:ActivationFunctionType
    cell_clip:float32 proj_clip:float32 merge_outputs:bool time_major:bool=true
    asymmetric_quantize_inputs:bool
ResizeBilinearOptions - - align_corners:bool half_pixel_centers:bool
ResizeNearestNeighborOptions align_corners:bool half_pixel_centers:bool
CallOptions subgraph:uint32
PadOptions
PadV2Options
ReshapeOptions new_shape:[int32]
SpaceToBatchNDOptions
BatchToSpaceNDOptions
SkipGramOptions ngram_size:int32 max_skip_size:int32 include_all_ngrams:bool
SpaceToDepthOptions block_size:int32
DepthToSpaceOptions block_size:int32
SubOptions fused_activation_function:ActivationFunctionType pot_scale_int16:bool=true
DivOptions fused_activation_function:ActivationFunctionType
TopKV2Options
EmbeddingLookupSparseOptions combiner:CombinerType
GatherOptions axis:int32 batch_dims:int32
TransposeOptions
ExpOptions
CosOptions
ReducerOptions keep_dims:bool
SqueezeOptions squeeze_dims:[int32]
SplitOptions num_splits:int32
SplitVOptions num_splits:int32
StridedSliceOptions begin_mask:int32 end_mask:int32 ellipsis_mask:int32 new_axis_mask:int32
    shrink_axis_mask:int32 offset:bool
LogSoftmaxOptions
CastOptions in_data_type:TensorType out_data_type:TensorType
DequantizeOptions
MaximumMinimumOptions
TileOptions
ArgMaxOptions output_type:TensorType
ArgMinOptions output_type:TensorType
GreaterOptions
GreaterEqualOptions
LessOptions
LessEqualOptions
NegOptions
SelectOptions
SliceOptions
TransposeConvOptions padding:Padding stride_w:int32 stride_h:int32
    fused_activation_function:ActivationFunctionType quantized_bias_type:TensorType
ExpandDimsOptions
SparseToDenseOptions validate_indices:bool
EqualOptions
NotEqualOptions
ShapeOptions out_type:TensorType
RankOptions
PowOptions
FakeQuantOptions min:float32 max:float32 num_bits:int32 narrow_range:bool
PackOptions values_count:int32 axis:int32
LogicalOrOptions
OneHotOptions axis:int32
AbsOptions
HardSwishOptions
LogicalAndOptions
LogicalNotOptions
UnpackOptions num:int32 axis:int32
FloorDivOptions
SquareOptions
ZerosLikeOptions
FillOptions
FloorModOptions
RangeOptions
LeakyReluOptions alpha:float32
SquaredDifferenceOptions
MirrorPadOptions mode:MirrorPadMode
UniqueOptions idx_out_type:TensorType=2
ReverseV2Options
AddNOptions
GatherNdOptions
WhereOptions
ReverseSequenceOptions seq_dim:int32 batch_dim:int32
MatrixDiagOptions
QuantizeOptions
MatrixSetDiagOptions
IfOptions then_subgraph_index:int32 else_subgraph_index:int32
CallOnceOptions init_subgraph_index:int32
WhileOptions cond_subgraph_index:int32 body_subgraph_index:int32
NonMaxSuppressionV4Options
NonMaxSuppressionV5Options
ScatterNdOptions
SelectV2Options
DensifyOptions
SegmentSumOptions
BatchMatMulOptions adj_x:bool adj_y:bool asymmetric_quantize_inputs:bool
CumsumOptions exclusive:bool reverse:bool
BroadcastToOptions
Rfft2dOptions
HashtableOptions table_id:int32 key_dtype:TensorType value_dtype:TensorType
HashtableFindOptions
HashtableImportOptions
HashtableSizeOptions
VarHandleOptions container:string shared_name:string
ReadVariableOptions
AssignVariableOptions
RandomOptions seed:int64 seed2:int64
BucketizeOptions boundaries:[float32]
GeluOptions approximate:bool
DynamicUpdateSliceOptions
UnsortedSegmentProdOptions
UnsortedSegmentMaxOptions
UnsortedSegmentSumOptions
ATan2Options
UnsortedSegmentMinOptions
SignOptions
BitcastOptions
BitwiseXorOptions
RightShiftOptions
DilateOptions
ReduceWindowOptions reduce_function:int32
OperatorCode deprecated_builtin_code:int8 custom_code:string version:int32=1 builtin_code:int32
StableHLOCompositeOptions name:string decomposition_subgraph_index:int32
    composite_attributes:[uint8] composite_attributes_format:int8 version:int32
StablehloShiftLeftOptions
Operator opcode_index:uint32 inputs:[int32] outputs:[int32] builtin_options_type:union_type
    builtin_options:BuiltinOptions custom_options:[uint8] custom_options_format:int8
    mutating_variable_inputs:[bool] intermediates:[int32] large_custom_options_offset:uint64
    large_custom_options_size:uint64 builtin_options2_type:union_type
    builtin_options2:BuiltinOptions2 debug_metadata_index:int32=-1
SubGraph tensors:[Tensor] inputs:[int32] outputs:[int32] operators:[Operator] name:string
    debug_metadata_index:int32=-1
Buffer data:[uint8] offset:uint64 size:uint64
ExternalBufferGroup name:string
ExternalBuffer id:uint32 group:uint32 offset:uint64 length:uint64 packing:string
Metadata name:string buffer:uint32
TensorMap name:string tensor_index:uint32
SignatureDef inputs:[TensorMap] outputs:[TensorMap] signature_key:string - subgraph_index:uint32
Model version:uint32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:string
    buffers:[Buffer] metadata_buffer:[int32] metadata:[Metadata] signature_defs:[SignatureDef]
    external_buffer_groups:[ExternalBufferGroup] external_buffers:[ExternalBuffer]
"""


@dataclass(frozen=True)
class Field:
    """One slot of a table.

    Attributes:
        name: as in the schema; "-" for a deprecated slot that nothing reads.
        kind: "scalar", "string", "table", "union", "scalars", "strings" or "tables" (vectors).
        type: the scalar type, the table, or the union; for an enum "int8".
        enum: name of the field's enum, or "".
        default: of a scalar.
    """

    name: str
    kind: str
    type: str
    enum: str = ""
    default: Any = None


def _field(text: str) -> Field:
    if text == "-":
        return Field("-", "scalar", "uint8")
    name, _, rest = text.partition(":")
    kind, _, default = rest.partition("=")
    if kind == "string":
        return Field(name, "string", "uint8")
    if kind == "union_type":
        return Field(name, "scalar", "uint8", default=0)
    if kind in UNIONS:
        return Field(name, "union", kind)
    if kind.startswith("["):
        element = kind[1:-1]
        if element == "string":
            return Field(name, "strings", "uint8")
        return Field(name, "scalars" if element in SCALARS else "tables", element)
    if kind in ENUMS:
        return Field(name, "scalar", "int8", kind, int(default or 0))
    if kind in SCALARS:
        return Field(name, "scalar", kind, "", _default(kind, default))
    return Field(name, "table", kind)


def _default(kind: str, text: str) -> Any:
    if kind == "bool":
        return text == "true"
    return float(text or 0) if kind == "float32" else int(text or 0)


def _tables() -> dict[str, tuple[Field, ...]]:
    found: dict[str, tuple[Field, ...]] = {}
    for line in _TEXT.strip().replace("\n    ", " ").splitlines():
        name, *fields = line.split()
        found[name] = tuple(_field(f) for f in fields)
    return found


TABLES: Mapping[str, tuple[Field, ...]] = _tables()
"""Fields of every table by slot."""

_OPTIONS = {
    "L2_NORMALIZATION": "L2NormOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "MULTINOMIAL": "RandomOptions",
    **{
        op: "ReducerOptions"
        for op in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY")
    },
    "REDUCE_ALL": "ReducerOptions",
}

_BY_OPERATOR = {t[: -len("Options")].upper(): t for t in TABLES if t.endswith("Options")}


def options_table(op: str) -> str:
    """The options table of a builtin operator; "" for one that has none."""
    return _OPTIONS.get(op) or _BY_OPERATOR.get(op.replace("_", ""), "")
