from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class Layout(_message.Message):
  __slots__ = ("element_size_in_bits", "memory_space", "minor_to_major")
  MINOR_TO_MAJOR_FIELD_NUMBER: _ClassVar[int]
  ELEMENT_SIZE_IN_BITS_FIELD_NUMBER: _ClassVar[int]
  MEMORY_SPACE_FIELD_NUMBER: _ClassVar[int]
  minor_to_major: _containers.RepeatedScalarFieldContainer[int]
  element_size_in_bits: int
  memory_space: int
  def __init__(
    self,
    minor_to_major: _Iterable[int] | None = ...,
    element_size_in_bits: int | None = ...,
    memory_space: int | None = ...,
  ) -> None: ...

class Shape(_message.Message):
  __slots__ = ("dimensions", "element_type", "layout", "tuple_shapes")
  ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
  DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  TUPLE_SHAPES_FIELD_NUMBER: _ClassVar[int]
  LAYOUT_FIELD_NUMBER: _ClassVar[int]
  element_type: int
  dimensions: _containers.RepeatedScalarFieldContainer[int]
  tuple_shapes: _containers.RepeatedCompositeFieldContainer[Shape]
  layout: Layout
  def __init__(
    self,
    element_type: int | None = ...,
    dimensions: _Iterable[int] | None = ...,
    tuple_shapes: _Iterable[Shape | _Mapping] | None = ...,
    layout: Layout | _Mapping | None = ...,
  ) -> None: ...

class OpMetadata(_message.Message):
  __slots__ = (
    "op_name",
    "op_type",
    "source_file",
    "source_line",
    "stack_frame_id",
  )
  OP_TYPE_FIELD_NUMBER: _ClassVar[int]
  OP_NAME_FIELD_NUMBER: _ClassVar[int]
  SOURCE_FILE_FIELD_NUMBER: _ClassVar[int]
  SOURCE_LINE_FIELD_NUMBER: _ClassVar[int]
  STACK_FRAME_ID_FIELD_NUMBER: _ClassVar[int]
  op_type: str
  op_name: str
  source_file: str
  source_line: int
  stack_frame_id: int
  def __init__(
    self,
    op_type: str | None = ...,
    op_name: str | None = ...,
    source_file: str | None = ...,
    source_line: int | None = ...,
    stack_frame_id: int | None = ...,
  ) -> None: ...

class OutputOperandAliasing(_message.Message):
  __slots__ = ("operand_index", "operand_shape_index", "output_shape_index")
  OUTPUT_SHAPE_INDEX_FIELD_NUMBER: _ClassVar[int]
  OPERAND_INDEX_FIELD_NUMBER: _ClassVar[int]
  OPERAND_SHAPE_INDEX_FIELD_NUMBER: _ClassVar[int]
  output_shape_index: _containers.RepeatedScalarFieldContainer[int]
  operand_index: int
  operand_shape_index: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    output_shape_index: _Iterable[int] | None = ...,
    operand_index: int | None = ...,
    operand_shape_index: _Iterable[int] | None = ...,
  ) -> None: ...

class DotDimensionNumbers(_message.Message):
  __slots__ = (
    "lhs_batch_dimensions",
    "lhs_contracting_dimensions",
    "rhs_batch_dimensions",
    "rhs_contracting_dimensions",
  )
  LHS_CONTRACTING_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  RHS_CONTRACTING_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  LHS_BATCH_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  RHS_BATCH_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  lhs_contracting_dimensions: _containers.RepeatedScalarFieldContainer[int]
  rhs_contracting_dimensions: _containers.RepeatedScalarFieldContainer[int]
  lhs_batch_dimensions: _containers.RepeatedScalarFieldContainer[int]
  rhs_batch_dimensions: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    lhs_contracting_dimensions: _Iterable[int] | None = ...,
    rhs_contracting_dimensions: _Iterable[int] | None = ...,
    lhs_batch_dimensions: _Iterable[int] | None = ...,
    rhs_batch_dimensions: _Iterable[int] | None = ...,
  ) -> None: ...

class WindowDimension(_message.Message):
  __slots__ = (
    "base_dilation",
    "padding_high",
    "padding_low",
    "size",
    "stride",
    "window_dilation",
  )
  SIZE_FIELD_NUMBER: _ClassVar[int]
  STRIDE_FIELD_NUMBER: _ClassVar[int]
  PADDING_LOW_FIELD_NUMBER: _ClassVar[int]
  PADDING_HIGH_FIELD_NUMBER: _ClassVar[int]
  WINDOW_DILATION_FIELD_NUMBER: _ClassVar[int]
  BASE_DILATION_FIELD_NUMBER: _ClassVar[int]
  size: int
  stride: int
  padding_low: int
  padding_high: int
  window_dilation: int
  base_dilation: int
  def __init__(
    self,
    size: int | None = ...,
    stride: int | None = ...,
    padding_low: int | None = ...,
    padding_high: int | None = ...,
    window_dilation: int | None = ...,
    base_dilation: int | None = ...,
  ) -> None: ...

class Window(_message.Message):
  __slots__ = ("dimensions",)
  DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  dimensions: _containers.RepeatedCompositeFieldContainer[WindowDimension]
  def __init__(
    self, dimensions: _Iterable[WindowDimension | _Mapping] | None = ...
  ) -> None: ...

class ConvolutionDimensionNumbers(_message.Message):
  __slots__ = (
    "input_batch_dimension",
    "input_feature_dimension",
    "input_spatial_dimensions",
    "kernel_input_feature_dimension",
    "kernel_output_feature_dimension",
    "kernel_spatial_dimensions",
    "output_batch_dimension",
    "output_feature_dimension",
    "output_spatial_dimensions",
  )
  KERNEL_INPUT_FEATURE_DIMENSION_FIELD_NUMBER: _ClassVar[int]
  KERNEL_OUTPUT_FEATURE_DIMENSION_FIELD_NUMBER: _ClassVar[int]
  KERNEL_SPATIAL_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  INPUT_BATCH_DIMENSION_FIELD_NUMBER: _ClassVar[int]
  INPUT_FEATURE_DIMENSION_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_BATCH_DIMENSION_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_FEATURE_DIMENSION_FIELD_NUMBER: _ClassVar[int]
  INPUT_SPATIAL_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_SPATIAL_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  kernel_input_feature_dimension: int
  kernel_output_feature_dimension: int
  kernel_spatial_dimensions: _containers.RepeatedScalarFieldContainer[int]
  input_batch_dimension: int
  input_feature_dimension: int
  output_batch_dimension: int
  output_feature_dimension: int
  input_spatial_dimensions: _containers.RepeatedScalarFieldContainer[int]
  output_spatial_dimensions: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    kernel_input_feature_dimension: int | None = ...,
    kernel_output_feature_dimension: int | None = ...,
    kernel_spatial_dimensions: _Iterable[int] | None = ...,
    input_batch_dimension: int | None = ...,
    input_feature_dimension: int | None = ...,
    output_batch_dimension: int | None = ...,
    output_feature_dimension: int | None = ...,
    input_spatial_dimensions: _Iterable[int] | None = ...,
    output_spatial_dimensions: _Iterable[int] | None = ...,
  ) -> None: ...

class PrecisionConfig(_message.Message):
  __slots__ = ("algorithm", "operand_precision")
  OPERAND_PRECISION_FIELD_NUMBER: _ClassVar[int]
  ALGORITHM_FIELD_NUMBER: _ClassVar[int]
  operand_precision: _containers.RepeatedScalarFieldContainer[int]
  algorithm: int
  def __init__(
    self,
    operand_precision: _Iterable[int] | None = ...,
    algorithm: int | None = ...,
  ) -> None: ...

class ReplicaGroup(_message.Message):
  __slots__ = ("replica_ids",)
  REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
  replica_ids: _containers.RepeatedScalarFieldContainer[int]
  def __init__(self, replica_ids: _Iterable[int] | None = ...) -> None: ...

class IotaReplicaGroupList(_message.Message):
  __slots__ = (
    "iota_reshape_dims",
    "iota_transpose_perm",
    "num_devices_per_group",
    "num_replica_groups",
  )
  NUM_REPLICA_GROUPS_FIELD_NUMBER: _ClassVar[int]
  NUM_DEVICES_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
  IOTA_RESHAPE_DIMS_FIELD_NUMBER: _ClassVar[int]
  IOTA_TRANSPOSE_PERM_FIELD_NUMBER: _ClassVar[int]
  num_replica_groups: int
  num_devices_per_group: int
  iota_reshape_dims: _containers.RepeatedScalarFieldContainer[int]
  iota_transpose_perm: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    num_replica_groups: int | None = ...,
    num_devices_per_group: int | None = ...,
    iota_reshape_dims: _Iterable[int] | None = ...,
    iota_transpose_perm: _Iterable[int] | None = ...,
  ) -> None: ...

class CollectiveDeviceList(_message.Message):
  __slots__ = ("iota_replica_group_list", "replica_groups")
  REPLICA_GROUPS_FIELD_NUMBER: _ClassVar[int]
  IOTA_REPLICA_GROUP_LIST_FIELD_NUMBER: _ClassVar[int]
  replica_groups: _containers.RepeatedCompositeFieldContainer[ReplicaGroup]
  iota_replica_group_list: IotaReplicaGroupList
  def __init__(
    self,
    replica_groups: _Iterable[ReplicaGroup | _Mapping] | None = ...,
    iota_replica_group_list: IotaReplicaGroupList | _Mapping | None = ...,
  ) -> None: ...

class Mesh(_message.Message):
  __slots__ = ("axes", "device_ids")
  class Axis(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(
      self, name: str | None = ..., size: int | None = ...
    ) -> None: ...

  AXES_FIELD_NUMBER: _ClassVar[int]
  DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
  axes: _containers.RepeatedCompositeFieldContainer[Mesh.Axis]
  device_ids: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    axes: _Iterable[Mesh.Axis | _Mapping] | None = ...,
    device_ids: _Iterable[int] | None = ...,
  ) -> None: ...

class AxisRef(_message.Message):
  __slots__ = ("mesh_axis_index", "sub_axis_info")
  class SubAxis(_message.Message):
    __slots__ = ("pre_size", "size")
    PRE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    pre_size: int
    size: int
    def __init__(
      self, pre_size: int | None = ..., size: int | None = ...
    ) -> None: ...

  MESH_AXIS_INDEX_FIELD_NUMBER: _ClassVar[int]
  SUB_AXIS_INFO_FIELD_NUMBER: _ClassVar[int]
  mesh_axis_index: int
  sub_axis_info: AxisRef.SubAxis
  def __init__(
    self,
    mesh_axis_index: int | None = ...,
    sub_axis_info: AxisRef.SubAxis | _Mapping | None = ...,
  ) -> None: ...

class MeshAxesReplicaGroupList(_message.Message):
  __slots__ = ("axes", "mesh")
  MESH_FIELD_NUMBER: _ClassVar[int]
  AXES_FIELD_NUMBER: _ClassVar[int]
  mesh: Mesh
  axes: _containers.RepeatedCompositeFieldContainer[AxisRef]
  def __init__(
    self,
    mesh: Mesh | _Mapping | None = ...,
    axes: _Iterable[AxisRef | _Mapping] | None = ...,
  ) -> None: ...

class SourceTarget(_message.Message):
  __slots__ = ("source", "target")
  SOURCE_FIELD_NUMBER: _ClassVar[int]
  TARGET_FIELD_NUMBER: _ClassVar[int]
  source: int
  target: int
  def __init__(
    self, source: int | None = ..., target: int | None = ...
  ) -> None: ...

class Instruction(_message.Message):
  __slots__ = (
    "backend_config",
    "batch_group_count",
    "called_computation_ids",
    "channel_id",
    "collective_device_list",
    "control_predecessor_ids",
    "convolution_dimension_numbers",
    "custom_call_has_side_effect",
    "custom_call_target",
    "dimensions",
    "dot_dimension_numbers",
    "feature_group_count",
    "fusion_kind",
    "id",
    "is_host_transfer",
    "mesh_axes_replica_group_list",
    "metadata",
    "name",
    "opcode",
    "operand_ids",
    "original_value",
    "output_operand_aliasing",
    "parameter_number",
    "precision_config",
    "replica_groups",
    "shape",
    "sharding",
    "source_target_pairs",
    "tuple_index",
    "window",
  )
  NAME_FIELD_NUMBER: _ClassVar[int]
  OPCODE_FIELD_NUMBER: _ClassVar[int]
  SHAPE_FIELD_NUMBER: _ClassVar[int]
  METADATA_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_NUMBER_FIELD_NUMBER: _ClassVar[int]
  FUSION_KIND_FIELD_NUMBER: _ClassVar[int]
  TUPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
  DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  WINDOW_FIELD_NUMBER: _ClassVar[int]
  CONVOLUTION_DIMENSION_NUMBERS_FIELD_NUMBER: _ClassVar[int]
  CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
  CUSTOM_CALL_TARGET_FIELD_NUMBER: _ClassVar[int]
  DOT_DIMENSION_NUMBERS_FIELD_NUMBER: _ClassVar[int]
  ID_FIELD_NUMBER: _ClassVar[int]
  OPERAND_IDS_FIELD_NUMBER: _ClassVar[int]
  CONTROL_PREDECESSOR_IDS_FIELD_NUMBER: _ClassVar[int]
  CALLED_COMPUTATION_IDS_FIELD_NUMBER: _ClassVar[int]
  SHARDING_FIELD_NUMBER: _ClassVar[int]
  BACKEND_CONFIG_FIELD_NUMBER: _ClassVar[int]
  IS_HOST_TRANSFER_FIELD_NUMBER: _ClassVar[int]
  REPLICA_GROUPS_FIELD_NUMBER: _ClassVar[int]
  FEATURE_GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
  PRECISION_CONFIG_FIELD_NUMBER: _ClassVar[int]
  SOURCE_TARGET_PAIRS_FIELD_NUMBER: _ClassVar[int]
  BATCH_GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
  CUSTOM_CALL_HAS_SIDE_EFFECT_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_OPERAND_ALIASING_FIELD_NUMBER: _ClassVar[int]
  COLLECTIVE_DEVICE_LIST_FIELD_NUMBER: _ClassVar[int]
  ORIGINAL_VALUE_FIELD_NUMBER: _ClassVar[int]
  MESH_AXES_REPLICA_GROUP_LIST_FIELD_NUMBER: _ClassVar[int]
  name: str
  opcode: str
  shape: Shape
  metadata: OpMetadata
  parameter_number: int
  fusion_kind: str
  tuple_index: int
  dimensions: _containers.RepeatedScalarFieldContainer[int]
  window: Window
  convolution_dimension_numbers: ConvolutionDimensionNumbers
  channel_id: int
  custom_call_target: str
  dot_dimension_numbers: DotDimensionNumbers
  id: int
  operand_ids: _containers.RepeatedScalarFieldContainer[int]
  control_predecessor_ids: _containers.RepeatedScalarFieldContainer[int]
  called_computation_ids: _containers.RepeatedScalarFieldContainer[int]
  sharding: bytes
  backend_config: bytes
  is_host_transfer: bool
  replica_groups: _containers.RepeatedCompositeFieldContainer[ReplicaGroup]
  feature_group_count: int
  precision_config: PrecisionConfig
  source_target_pairs: _containers.RepeatedCompositeFieldContainer[SourceTarget]
  batch_group_count: int
  custom_call_has_side_effect: bool
  output_operand_aliasing: _containers.RepeatedCompositeFieldContainer[
    OutputOperandAliasing
  ]
  collective_device_list: CollectiveDeviceList
  original_value: bytes
  mesh_axes_replica_group_list: MeshAxesReplicaGroupList
  def __init__(
    self,
    name: str | None = ...,
    opcode: str | None = ...,
    shape: Shape | _Mapping | None = ...,
    metadata: OpMetadata | _Mapping | None = ...,
    parameter_number: int | None = ...,
    fusion_kind: str | None = ...,
    tuple_index: int | None = ...,
    dimensions: _Iterable[int] | None = ...,
    window: Window | _Mapping | None = ...,
    convolution_dimension_numbers: ConvolutionDimensionNumbers
    | _Mapping
    | None = ...,
    channel_id: int | None = ...,
    custom_call_target: str | None = ...,
    dot_dimension_numbers: DotDimensionNumbers | _Mapping | None = ...,
    id: int | None = ...,
    operand_ids: _Iterable[int] | None = ...,
    control_predecessor_ids: _Iterable[int] | None = ...,
    called_computation_ids: _Iterable[int] | None = ...,
    sharding: bytes | None = ...,
    backend_config: bytes | None = ...,
    is_host_transfer: bool = ...,
    replica_groups: _Iterable[ReplicaGroup | _Mapping] | None = ...,
    feature_group_count: int | None = ...,
    precision_config: PrecisionConfig | _Mapping | None = ...,
    source_target_pairs: _Iterable[SourceTarget | _Mapping] | None = ...,
    batch_group_count: int | None = ...,
    custom_call_has_side_effect: bool = ...,
    output_operand_aliasing: _Iterable[OutputOperandAliasing | _Mapping]
    | None = ...,
    collective_device_list: CollectiveDeviceList | _Mapping | None = ...,
    original_value: bytes | None = ...,
    mesh_axes_replica_group_list: MeshAxesReplicaGroupList
    | _Mapping
    | None = ...,
  ) -> None: ...

class ProgramShape(_message.Message):
  __slots__ = ("parameter_names", "parameters", "result")
  PARAMETERS_FIELD_NUMBER: _ClassVar[int]
  RESULT_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_NAMES_FIELD_NUMBER: _ClassVar[int]
  parameters: _containers.RepeatedCompositeFieldContainer[Shape]
  result: Shape
  parameter_names: _containers.RepeatedScalarFieldContainer[str]
  def __init__(
    self,
    parameters: _Iterable[Shape | _Mapping] | None = ...,
    result: Shape | _Mapping | None = ...,
    parameter_names: _Iterable[str] | None = ...,
  ) -> None: ...

class Computation(_message.Message):
  __slots__ = (
    "id",
    "instructions",
    "is_fusion_computation",
    "name",
    "program_shape",
    "root_id",
  )
  NAME_FIELD_NUMBER: _ClassVar[int]
  INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
  PROGRAM_SHAPE_FIELD_NUMBER: _ClassVar[int]
  ID_FIELD_NUMBER: _ClassVar[int]
  ROOT_ID_FIELD_NUMBER: _ClassVar[int]
  IS_FUSION_COMPUTATION_FIELD_NUMBER: _ClassVar[int]
  name: str
  instructions: _containers.RepeatedCompositeFieldContainer[Instruction]
  program_shape: ProgramShape
  id: int
  root_id: int
  is_fusion_computation: bool
  def __init__(
    self,
    name: str | None = ...,
    instructions: _Iterable[Instruction | _Mapping] | None = ...,
    program_shape: ProgramShape | _Mapping | None = ...,
    id: int | None = ...,
    root_id: int | None = ...,
    is_fusion_computation: bool = ...,
  ) -> None: ...

class InstructionSequence(_message.Message):
  __slots__ = ("instruction_ids",)
  INSTRUCTION_IDS_FIELD_NUMBER: _ClassVar[int]
  instruction_ids: _containers.RepeatedScalarFieldContainer[int]
  def __init__(self, instruction_ids: _Iterable[int] | None = ...) -> None: ...

class Schedule(_message.Message):
  __slots__ = ("sequences",)
  class SequencesEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: int
    value: InstructionSequence
    def __init__(
      self,
      key: int | None = ...,
      value: InstructionSequence | _Mapping | None = ...,
    ) -> None: ...

  SEQUENCES_FIELD_NUMBER: _ClassVar[int]
  sequences: _containers.MessageMap[int, InstructionSequence]
  def __init__(
    self, sequences: _Mapping[int, InstructionSequence] | None = ...
  ) -> None: ...

class AliasEntry(_message.Message):
  __slots__ = (
    "kind",
    "output_shape_index",
    "parameter_number",
    "parameter_shape_index",
  )
  OUTPUT_SHAPE_INDEX_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_NUMBER_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_SHAPE_INDEX_FIELD_NUMBER: _ClassVar[int]
  KIND_FIELD_NUMBER: _ClassVar[int]
  output_shape_index: _containers.RepeatedScalarFieldContainer[int]
  parameter_number: int
  parameter_shape_index: _containers.RepeatedScalarFieldContainer[int]
  kind: int
  def __init__(
    self,
    output_shape_index: _Iterable[int] | None = ...,
    parameter_number: int | None = ...,
    parameter_shape_index: _Iterable[int] | None = ...,
    kind: int | None = ...,
  ) -> None: ...

class InputOutputAlias(_message.Message):
  __slots__ = ("entries",)
  ENTRIES_FIELD_NUMBER: _ClassVar[int]
  entries: _containers.RepeatedCompositeFieldContainer[AliasEntry]
  def __init__(
    self, entries: _Iterable[AliasEntry | _Mapping] | None = ...
  ) -> None: ...

class FileLocation(_message.Message):
  __slots__ = ("column", "file_name_id", "function_name_id", "line")
  FILE_NAME_ID_FIELD_NUMBER: _ClassVar[int]
  FUNCTION_NAME_ID_FIELD_NUMBER: _ClassVar[int]
  LINE_FIELD_NUMBER: _ClassVar[int]
  COLUMN_FIELD_NUMBER: _ClassVar[int]
  file_name_id: int
  function_name_id: int
  line: int
  column: int
  def __init__(
    self,
    file_name_id: int | None = ...,
    function_name_id: int | None = ...,
    line: int | None = ...,
    column: int | None = ...,
  ) -> None: ...

class StackFrame(_message.Message):
  __slots__ = ("file_location_id", "parent_frame_id")
  FILE_LOCATION_ID_FIELD_NUMBER: _ClassVar[int]
  PARENT_FRAME_ID_FIELD_NUMBER: _ClassVar[int]
  file_location_id: int
  parent_frame_id: int
  def __init__(
    self, file_location_id: int | None = ..., parent_frame_id: int | None = ...
  ) -> None: ...

class StackFrameIndex(_message.Message):
  __slots__ = ("file_locations", "file_names", "function_names", "stack_frames")
  FILE_NAMES_FIELD_NUMBER: _ClassVar[int]
  FUNCTION_NAMES_FIELD_NUMBER: _ClassVar[int]
  FILE_LOCATIONS_FIELD_NUMBER: _ClassVar[int]
  STACK_FRAMES_FIELD_NUMBER: _ClassVar[int]
  file_names: _containers.RepeatedScalarFieldContainer[str]
  function_names: _containers.RepeatedScalarFieldContainer[str]
  file_locations: _containers.RepeatedCompositeFieldContainer[FileLocation]
  stack_frames: _containers.RepeatedCompositeFieldContainer[StackFrame]
  def __init__(
    self,
    file_names: _Iterable[str] | None = ...,
    function_names: _Iterable[str] | None = ...,
    file_locations: _Iterable[FileLocation | _Mapping] | None = ...,
    stack_frames: _Iterable[StackFrame | _Mapping] | None = ...,
  ) -> None: ...

class Module(_message.Message):
  __slots__ = (
    "computations",
    "entry_computation_id",
    "entry_computation_name",
    "host_program_shape",
    "id",
    "input_output_alias",
    "name",
    "schedule",
    "stack_frame_index",
  )
  NAME_FIELD_NUMBER: _ClassVar[int]
  ENTRY_COMPUTATION_NAME_FIELD_NUMBER: _ClassVar[int]
  COMPUTATIONS_FIELD_NUMBER: _ClassVar[int]
  HOST_PROGRAM_SHAPE_FIELD_NUMBER: _ClassVar[int]
  ID_FIELD_NUMBER: _ClassVar[int]
  ENTRY_COMPUTATION_ID_FIELD_NUMBER: _ClassVar[int]
  SCHEDULE_FIELD_NUMBER: _ClassVar[int]
  INPUT_OUTPUT_ALIAS_FIELD_NUMBER: _ClassVar[int]
  STACK_FRAME_INDEX_FIELD_NUMBER: _ClassVar[int]
  name: str
  entry_computation_name: str
  computations: _containers.RepeatedCompositeFieldContainer[Computation]
  host_program_shape: ProgramShape
  id: int
  entry_computation_id: int
  schedule: Schedule
  input_output_alias: InputOutputAlias
  stack_frame_index: StackFrameIndex
  def __init__(
    self,
    name: str | None = ...,
    entry_computation_name: str | None = ...,
    computations: _Iterable[Computation | _Mapping] | None = ...,
    host_program_shape: ProgramShape | _Mapping | None = ...,
    id: int | None = ...,
    entry_computation_id: int | None = ...,
    schedule: Schedule | _Mapping | None = ...,
    input_output_alias: InputOutputAlias | _Mapping | None = ...,
    stack_frame_index: StackFrameIndex | _Mapping | None = ...,
  ) -> None: ...

class ModuleConfig(_message.Message):
  __slots__ = ("entry_computation_layout",)
  ENTRY_COMPUTATION_LAYOUT_FIELD_NUMBER: _ClassVar[int]
  entry_computation_layout: ProgramShape
  def __init__(
    self, entry_computation_layout: ProgramShape | _Mapping | None = ...
  ) -> None: ...

class BufferLocation(_message.Message):
  __slots__ = ("instruction_id", "shape_index")
  SHAPE_INDEX_FIELD_NUMBER: _ClassVar[int]
  INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
  shape_index: _containers.RepeatedScalarFieldContainer[int]
  instruction_id: int
  def __init__(
    self,
    shape_index: _Iterable[int] | None = ...,
    instruction_id: int | None = ...,
  ) -> None: ...

class LogicalBuffer(_message.Message):
  __slots__ = ("color", "defined_at", "id", "size")
  ID_FIELD_NUMBER: _ClassVar[int]
  SIZE_FIELD_NUMBER: _ClassVar[int]
  DEFINED_AT_FIELD_NUMBER: _ClassVar[int]
  COLOR_FIELD_NUMBER: _ClassVar[int]
  id: int
  size: int
  defined_at: BufferLocation
  color: int
  def __init__(
    self,
    id: int | None = ...,
    size: int | None = ...,
    defined_at: BufferLocation | _Mapping | None = ...,
    color: int | None = ...,
  ) -> None: ...

class AssignedBuffer(_message.Message):
  __slots__ = ("logical_buffer_id", "offset", "size")
  LOGICAL_BUFFER_ID_FIELD_NUMBER: _ClassVar[int]
  OFFSET_FIELD_NUMBER: _ClassVar[int]
  SIZE_FIELD_NUMBER: _ClassVar[int]
  logical_buffer_id: int
  offset: int
  size: int
  def __init__(
    self,
    logical_buffer_id: int | None = ...,
    offset: int | None = ...,
    size: int | None = ...,
  ) -> None: ...

class BufferAllocation(_message.Message):
  __slots__ = (
    "assigned",
    "color",
    "index",
    "is_constant",
    "is_entry_computation_parameter",
    "is_thread_local",
    "is_tuple",
    "maybe_live_out",
    "parameter_number",
    "parameter_shape_index",
    "size",
  )
  INDEX_FIELD_NUMBER: _ClassVar[int]
  SIZE_FIELD_NUMBER: _ClassVar[int]
  IS_THREAD_LOCAL_FIELD_NUMBER: _ClassVar[int]
  IS_ENTRY_COMPUTATION_PARAMETER_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_NUMBER_FIELD_NUMBER: _ClassVar[int]
  MAYBE_LIVE_OUT_FIELD_NUMBER: _ClassVar[int]
  COLOR_FIELD_NUMBER: _ClassVar[int]
  ASSIGNED_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_SHAPE_INDEX_FIELD_NUMBER: _ClassVar[int]
  IS_TUPLE_FIELD_NUMBER: _ClassVar[int]
  IS_CONSTANT_FIELD_NUMBER: _ClassVar[int]
  index: int
  size: int
  is_thread_local: bool
  is_entry_computation_parameter: bool
  parameter_number: int
  maybe_live_out: bool
  color: int
  assigned: _containers.RepeatedCompositeFieldContainer[AssignedBuffer]
  parameter_shape_index: _containers.RepeatedScalarFieldContainer[int]
  is_tuple: bool
  is_constant: bool
  def __init__(
    self,
    index: int | None = ...,
    size: int | None = ...,
    is_thread_local: bool = ...,
    is_entry_computation_parameter: bool = ...,
    parameter_number: int | None = ...,
    maybe_live_out: bool = ...,
    color: int | None = ...,
    assigned: _Iterable[AssignedBuffer | _Mapping] | None = ...,
    parameter_shape_index: _Iterable[int] | None = ...,
    is_tuple: bool = ...,
    is_constant: bool = ...,
  ) -> None: ...

class HeapEvent(_message.Message):
  __slots__ = (
    "buffer_id",
    "computation_name",
    "instruction_name",
    "kind",
    "share_with_canonical_id",
  )
  KIND_FIELD_NUMBER: _ClassVar[int]
  BUFFER_ID_FIELD_NUMBER: _ClassVar[int]
  COMPUTATION_NAME_FIELD_NUMBER: _ClassVar[int]
  INSTRUCTION_NAME_FIELD_NUMBER: _ClassVar[int]
  SHARE_WITH_CANONICAL_ID_FIELD_NUMBER: _ClassVar[int]
  kind: int
  buffer_id: int
  computation_name: str
  instruction_name: str
  share_with_canonical_id: int
  def __init__(
    self,
    kind: int | None = ...,
    buffer_id: int | None = ...,
    computation_name: str | None = ...,
    instruction_name: str | None = ...,
    share_with_canonical_id: int | None = ...,
  ) -> None: ...

class HeapTrace(_message.Message):
  __slots__ = ("buffer_allocation_index", "events", "whole_module_simulation")
  EVENTS_FIELD_NUMBER: _ClassVar[int]
  WHOLE_MODULE_SIMULATION_FIELD_NUMBER: _ClassVar[int]
  BUFFER_ALLOCATION_INDEX_FIELD_NUMBER: _ClassVar[int]
  events: _containers.RepeatedCompositeFieldContainer[HeapEvent]
  whole_module_simulation: bool
  buffer_allocation_index: int
  def __init__(
    self,
    events: _Iterable[HeapEvent | _Mapping] | None = ...,
    whole_module_simulation: bool = ...,
    buffer_allocation_index: int | None = ...,
  ) -> None: ...

class BufferAssignment(_message.Message):
  __slots__ = ("allocations", "heap_traces", "logical_buffers")
  LOGICAL_BUFFERS_FIELD_NUMBER: _ClassVar[int]
  ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
  HEAP_TRACES_FIELD_NUMBER: _ClassVar[int]
  logical_buffers: _containers.RepeatedCompositeFieldContainer[LogicalBuffer]
  allocations: _containers.RepeatedCompositeFieldContainer[BufferAllocation]
  heap_traces: _containers.RepeatedCompositeFieldContainer[HeapTrace]
  def __init__(
    self,
    logical_buffers: _Iterable[LogicalBuffer | _Mapping] | None = ...,
    allocations: _Iterable[BufferAllocation | _Mapping] | None = ...,
    heap_traces: _Iterable[HeapTrace | _Mapping] | None = ...,
  ) -> None: ...

class CompiledModule(_message.Message):
  __slots__ = ("buffer_assignment", "hlo_module")
  HLO_MODULE_FIELD_NUMBER: _ClassVar[int]
  BUFFER_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
  hlo_module: Module
  buffer_assignment: BufferAssignment
  def __init__(
    self,
    hlo_module: Module | _Mapping | None = ...,
    buffer_assignment: BufferAssignment | _Mapping | None = ...,
  ) -> None: ...
