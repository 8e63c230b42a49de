from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutableMetadata(_message.Message):
  __slots__ = ("output_specs", "parameter_specs")
  OUTPUT_SPECS_FIELD_NUMBER: _ClassVar[int]
  PARAMETER_SPECS_FIELD_NUMBER: _ClassVar[int]
  output_specs: _containers.RepeatedCompositeFieldContainer[OutputSpec]
  parameter_specs: _containers.RepeatedCompositeFieldContainer[ParameterSpec]
  def __init__(
    self,
    output_specs: _Iterable[OutputSpec | _Mapping] | None = ...,
    parameter_specs: _Iterable[ParameterSpec | _Mapping] | None = ...,
  ) -> None: ...

class OutputSpec(_message.Message):
  __slots__ = ("data_type", "memory_kind", "shape", "shard_shape")
  SHARD_SHAPE_FIELD_NUMBER: _ClassVar[int]
  DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
  MEMORY_KIND_FIELD_NUMBER: _ClassVar[int]
  SHAPE_FIELD_NUMBER: _ClassVar[int]
  shard_shape: IfrtShape
  data_type: IfrtDataType
  memory_kind: str
  shape: IfrtShape
  def __init__(
    self,
    shard_shape: IfrtShape | _Mapping | None = ...,
    data_type: IfrtDataType | _Mapping | None = ...,
    memory_kind: str | None = ...,
    shape: IfrtShape | _Mapping | None = ...,
  ) -> None: ...

class ParameterSpec(_message.Message):
  __slots__ = ("donated_input",)
  DONATED_INPUT_FIELD_NUMBER: _ClassVar[int]
  donated_input: bool
  def __init__(self, donated_input: bool = ...) -> None: ...

class IfrtShape(_message.Message):
  __slots__ = ("dimensions",)
  DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  dimensions: _containers.RepeatedScalarFieldContainer[int]
  def __init__(self, dimensions: _Iterable[int] | None = ...) -> None: ...

class IfrtDataType(_message.Message):
  __slots__ = ("kind",)
  KIND_FIELD_NUMBER: _ClassVar[int]
  kind: int
  def __init__(self, kind: int | None = ...) -> None: ...

class ExecutableAndOptions(_message.Message):
  __slots__ = ("compile_options", "pjrt_client_name", "serialized_executable")
  SERIALIZED_EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
  COMPILE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
  PJRT_CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
  serialized_executable: bytes
  compile_options: bytes
  pjrt_client_name: str
  def __init__(
    self,
    serialized_executable: bytes | None = ...,
    compile_options: bytes | None = ...,
    pjrt_client_name: str | None = ...,
  ) -> None: ...

class HloModuleWithConfig(_message.Message):
  __slots__ = ("config", "hlo_module")
  HLO_MODULE_FIELD_NUMBER: _ClassVar[int]
  CONFIG_FIELD_NUMBER: _ClassVar[int]
  hlo_module: bytes
  config: bytes
  def __init__(
    self, hlo_module: bytes | None = ..., config: bytes | None = ...
  ) -> None: ...

class Symbol(_message.Message):
  __slots__ = ("function_type_id", "name")
  FUNCTION_TYPE_ID_FIELD_NUMBER: _ClassVar[int]
  NAME_FIELD_NUMBER: _ClassVar[int]
  function_type_id: int
  name: str
  def __init__(
    self, function_type_id: int | None = ..., name: str | None = ...
  ) -> None: ...

class CompilationResult(_message.Message):
  __slots__ = (
    "buffer_assignment",
    "compiled_symbols",
    "data_layout",
    "entry_function_name",
    "hlo_module",
    "obj_files_kind",
    "object_files",
    "target_machine_options",
    "thunk_sequence",
  )
  HLO_MODULE_FIELD_NUMBER: _ClassVar[int]
  BUFFER_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
  ENTRY_FUNCTION_NAME_FIELD_NUMBER: _ClassVar[int]
  OBJ_FILES_KIND_FIELD_NUMBER: _ClassVar[int]
  THUNK_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
  COMPILED_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
  OBJECT_FILES_FIELD_NUMBER: _ClassVar[int]
  TARGET_MACHINE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
  DATA_LAYOUT_FIELD_NUMBER: _ClassVar[int]
  hlo_module: HloModuleWithConfig
  buffer_assignment: bytes
  entry_function_name: str
  obj_files_kind: int
  thunk_sequence: ThunkSequence
  compiled_symbols: _containers.RepeatedCompositeFieldContainer[Symbol]
  object_files: _containers.RepeatedScalarFieldContainer[bytes]
  target_machine_options: bytes
  data_layout: str
  def __init__(
    self,
    hlo_module: HloModuleWithConfig | _Mapping | None = ...,
    buffer_assignment: bytes | None = ...,
    entry_function_name: str | None = ...,
    obj_files_kind: int | None = ...,
    thunk_sequence: ThunkSequence | _Mapping | None = ...,
    compiled_symbols: _Iterable[Symbol | _Mapping] | None = ...,
    object_files: _Iterable[bytes] | None = ...,
    target_machine_options: bytes | None = ...,
    data_layout: str | None = ...,
  ) -> None: ...

class Slice(_message.Message):
  __slots__ = ("allocation_index", "element_type", "offset", "size")
  OFFSET_FIELD_NUMBER: _ClassVar[int]
  SIZE_FIELD_NUMBER: _ClassVar[int]
  ALLOCATION_INDEX_FIELD_NUMBER: _ClassVar[int]
  ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
  offset: int
  size: int
  allocation_index: int
  element_type: int
  def __init__(
    self,
    offset: int | None = ...,
    size: int | None = ...,
    allocation_index: int | None = ...,
    element_type: int | None = ...,
  ) -> None: ...

class ShapeAndSlice(_message.Message):
  __slots__ = ("shape", "slice")
  SHAPE_FIELD_NUMBER: _ClassVar[int]
  SLICE_FIELD_NUMBER: _ClassVar[int]
  shape: bytes
  slice: Slice
  def __init__(
    self, shape: bytes | None = ..., slice: Slice | _Mapping | None = ...
  ) -> None: ...

class KernelSlice(_message.Message):
  __slots__ = ("shape", "slice")
  SLICE_FIELD_NUMBER: _ClassVar[int]
  SHAPE_FIELD_NUMBER: _ClassVar[int]
  slice: Slice
  shape: bytes
  def __init__(
    self, slice: Slice | _Mapping | None = ..., shape: bytes | None = ...
  ) -> None: ...

class BinaryOperation(_message.Message):
  __slots__ = ("capture_rhs", "dimensions", "lhs", "output", "rhs")
  DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
  LHS_FIELD_NUMBER: _ClassVar[int]
  RHS_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_FIELD_NUMBER: _ClassVar[int]
  CAPTURE_RHS_FIELD_NUMBER: _ClassVar[int]
  dimensions: bytes
  lhs: ShapeAndSlice
  rhs: ShapeAndSlice
  output: ShapeAndSlice
  capture_rhs: bool
  def __init__(
    self,
    dimensions: bytes | None = ...,
    lhs: ShapeAndSlice | _Mapping | None = ...,
    rhs: ShapeAndSlice | _Mapping | None = ...,
    output: ShapeAndSlice | _Mapping | None = ...,
    capture_rhs: bool = ...,
  ) -> None: ...

class OpBuffers(_message.Message):
  __slots__ = ("destinations", "sources")
  SOURCES_FIELD_NUMBER: _ClassVar[int]
  DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
  sources: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  destinations: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  def __init__(
    self,
    sources: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
    destinations: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
  ) -> None: ...

class CollectiveThunk(_message.Message):
  __slots__ = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "op_buffers",
    "op_params",
    "op_resources",
    "reduce_scatter",
  )
  OP_PARAMS_FIELD_NUMBER: _ClassVar[int]
  OP_BUFFERS_FIELD_NUMBER: _ClassVar[int]
  OP_RESOURCES_FIELD_NUMBER: _ClassVar[int]
  ALL_GATHER_FIELD_NUMBER: _ClassVar[int]
  ALL_REDUCE_FIELD_NUMBER: _ClassVar[int]
  ALL_TO_ALL_FIELD_NUMBER: _ClassVar[int]
  REDUCE_SCATTER_FIELD_NUMBER: _ClassVar[int]
  COLLECTIVE_PERMUTE_FIELD_NUMBER: _ClassVar[int]
  op_params: bytes
  op_buffers: OpBuffers
  op_resources: bytes
  all_gather: bytes
  all_reduce: bytes
  all_to_all: bytes
  reduce_scatter: bytes
  collective_permute: bytes
  def __init__(
    self,
    op_params: bytes | None = ...,
    op_buffers: OpBuffers | _Mapping | None = ...,
    op_resources: bytes | None = ...,
    all_gather: bytes | None = ...,
    all_reduce: bytes | None = ...,
    all_to_all: bytes | None = ...,
    reduce_scatter: bytes | None = ...,
    collective_permute: bytes | None = ...,
  ) -> None: ...

class CallThunk(_message.Message):
  __slots__ = ("called_sequence",)
  CALLED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
  called_sequence: ThunkSequence
  def __init__(
    self, called_sequence: ThunkSequence | _Mapping | None = ...
  ) -> None: ...

class ConditionalThunk(_message.Message):
  __slots__ = ("branch_index_buffer", "branch_sequences")
  BRANCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
  BRANCH_INDEX_BUFFER_FIELD_NUMBER: _ClassVar[int]
  branch_sequences: _containers.RepeatedCompositeFieldContainer[ThunkSequence]
  branch_index_buffer: Slice
  def __init__(
    self,
    branch_sequences: _Iterable[ThunkSequence | _Mapping] | None = ...,
    branch_index_buffer: Slice | _Mapping | None = ...,
  ) -> None: ...

class ConvolutionThunk(_message.Message):
  __slots__ = (
    "dimension_numbers",
    "feature_group_count",
    "input",
    "kernel",
    "options",
    "output",
    "window",
  )
  DIMENSION_NUMBERS_FIELD_NUMBER: _ClassVar[int]
  WINDOW_FIELD_NUMBER: _ClassVar[int]
  FEATURE_GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
  INPUT_FIELD_NUMBER: _ClassVar[int]
  KERNEL_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_FIELD_NUMBER: _ClassVar[int]
  OPTIONS_FIELD_NUMBER: _ClassVar[int]
  dimension_numbers: bytes
  window: bytes
  feature_group_count: int
  input: ShapeAndSlice
  kernel: ShapeAndSlice
  output: ShapeAndSlice
  options: bytes
  def __init__(
    self,
    dimension_numbers: bytes | None = ...,
    window: bytes | None = ...,
    feature_group_count: int | None = ...,
    input: ShapeAndSlice | _Mapping | None = ...,
    kernel: ShapeAndSlice | _Mapping | None = ...,
    output: ShapeAndSlice | _Mapping | None = ...,
    options: bytes | None = ...,
  ) -> None: ...

class SortThunk(_message.Message):
  __slots__ = (
    "comparator_name",
    "dimension",
    "direction",
    "inputs",
    "is_stable",
  )
  DIMENSION_FIELD_NUMBER: _ClassVar[int]
  IS_STABLE_FIELD_NUMBER: _ClassVar[int]
  DIRECTION_FIELD_NUMBER: _ClassVar[int]
  COMPARATOR_NAME_FIELD_NUMBER: _ClassVar[int]
  INPUTS_FIELD_NUMBER: _ClassVar[int]
  dimension: int
  is_stable: bool
  direction: bytes
  comparator_name: str
  inputs: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  def __init__(
    self,
    dimension: int | None = ...,
    is_stable: bool = ...,
    direction: bytes | None = ...,
    comparator_name: str | None = ...,
    inputs: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
  ) -> None: ...

class FusionBuffers(_message.Message):
  __slots__ = ("arguments", "results")
  ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
  RESULTS_FIELD_NUMBER: _ClassVar[int]
  arguments: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  results: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  def __init__(
    self,
    arguments: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
    results: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
  ) -> None: ...

class XnnFusionThunk(_message.Message):
  __slots__ = ("convolution", "dot", "fusion", "options")
  OPTIONS_FIELD_NUMBER: _ClassVar[int]
  DOT_FIELD_NUMBER: _ClassVar[int]
  CONVOLUTION_FIELD_NUMBER: _ClassVar[int]
  FUSION_FIELD_NUMBER: _ClassVar[int]
  options: bytes
  dot: BinaryOperation
  convolution: ConvolutionThunk
  fusion: FusionBuffers
  def __init__(
    self,
    options: bytes | None = ...,
    dot: BinaryOperation | _Mapping | None = ...,
    convolution: ConvolutionThunk | _Mapping | None = ...,
    fusion: FusionBuffers | _Mapping | None = ...,
  ) -> None: ...

class YnnFusionThunk(_message.Message):
  __slots__ = ("arguments", "instruction_id", "options", "results")
  OPTIONS_FIELD_NUMBER: _ClassVar[int]
  INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
  ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
  RESULTS_FIELD_NUMBER: _ClassVar[int]
  options: bytes
  instruction_id: int
  arguments: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  results: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  def __init__(
    self,
    options: bytes | None = ...,
    instruction_id: int | None = ...,
    arguments: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
    results: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
  ) -> None: ...

class RngGetAndUpdateStateThunk(_message.Message):
  __slots__ = ("delta", "state_buffer")
  DELTA_FIELD_NUMBER: _ClassVar[int]
  STATE_BUFFER_FIELD_NUMBER: _ClassVar[int]
  delta: int
  state_buffer: Slice
  def __init__(
    self, delta: int | None = ..., state_buffer: Slice | _Mapping | None = ...
  ) -> None: ...

class TopKThunk(_message.Message):
  __slots__ = (
    "batch_size",
    "indices_buffer",
    "input_size",
    "k",
    "output_buffer",
    "values_buffer",
  )
  BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
  INPUT_SIZE_FIELD_NUMBER: _ClassVar[int]
  K_FIELD_NUMBER: _ClassVar[int]
  VALUES_BUFFER_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_BUFFER_FIELD_NUMBER: _ClassVar[int]
  INDICES_BUFFER_FIELD_NUMBER: _ClassVar[int]
  batch_size: int
  input_size: int
  k: int
  values_buffer: Slice
  output_buffer: Slice
  indices_buffer: Slice
  def __init__(
    self,
    batch_size: int | None = ...,
    input_size: int | None = ...,
    k: int | None = ...,
    values_buffer: Slice | _Mapping | None = ...,
    output_buffer: Slice | _Mapping | None = ...,
    indices_buffer: Slice | _Mapping | None = ...,
  ) -> None: ...

class WhileThunk(_message.Message):
  __slots__ = ("body_sequence", "cond_buffer", "cond_sequence", "trip_count")
  COND_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
  BODY_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
  TRIP_COUNT_FIELD_NUMBER: _ClassVar[int]
  COND_BUFFER_FIELD_NUMBER: _ClassVar[int]
  cond_sequence: ThunkSequence
  body_sequence: ThunkSequence
  trip_count: bytes
  cond_buffer: Slice
  def __init__(
    self,
    cond_sequence: ThunkSequence | _Mapping | None = ...,
    body_sequence: ThunkSequence | _Mapping | None = ...,
    trip_count: bytes | None = ...,
    cond_buffer: Slice | _Mapping | None = ...,
  ) -> None: ...

class KernelThunk(_message.Message):
  __slots__ = (
    "arguments",
    "invariant_arguments",
    "kernel_name",
    "min_alignment",
    "num_workgroups",
    "results",
  )
  KERNEL_NAME_FIELD_NUMBER: _ClassVar[int]
  NUM_WORKGROUPS_FIELD_NUMBER: _ClassVar[int]
  INVARIANT_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
  MIN_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
  ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
  RESULTS_FIELD_NUMBER: _ClassVar[int]
  kernel_name: str
  num_workgroups: bytes
  invariant_arguments: _containers.RepeatedScalarFieldContainer[int]
  min_alignment: bytes
  arguments: _containers.RepeatedCompositeFieldContainer[KernelSlice]
  results: _containers.RepeatedCompositeFieldContainer[KernelSlice]
  def __init__(
    self,
    kernel_name: str | None = ...,
    num_workgroups: bytes | None = ...,
    invariant_arguments: _Iterable[int] | None = ...,
    min_alignment: bytes | None = ...,
    arguments: _Iterable[KernelSlice | _Mapping] | None = ...,
    results: _Iterable[KernelSlice | _Mapping] | None = ...,
  ) -> None: ...

class CopyThunk(_message.Message):
  __slots__ = ("destination", "source")
  SOURCE_FIELD_NUMBER: _ClassVar[int]
  DESTINATION_FIELD_NUMBER: _ClassVar[int]
  source: ShapeAndSlice
  destination: ShapeAndSlice
  def __init__(
    self,
    source: ShapeAndSlice | _Mapping | None = ...,
    destination: ShapeAndSlice | _Mapping | None = ...,
  ) -> None: ...

class FftThunk(_message.Message):
  __slots__ = (
    "fft_length",
    "fft_type",
    "input",
    "is_multi_thread_eigen",
    "output",
  )
  IS_MULTI_THREAD_EIGEN_FIELD_NUMBER: _ClassVar[int]
  FFT_TYPE_FIELD_NUMBER: _ClassVar[int]
  FFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
  INPUT_FIELD_NUMBER: _ClassVar[int]
  OUTPUT_FIELD_NUMBER: _ClassVar[int]
  is_multi_thread_eigen: bool
  fft_type: int
  fft_length: _containers.RepeatedScalarFieldContainer[int]
  input: ShapeAndSlice
  output: ShapeAndSlice
  def __init__(
    self,
    is_multi_thread_eigen: bool = ...,
    fft_type: int | None = ...,
    fft_length: _Iterable[int] | None = ...,
    input: ShapeAndSlice | _Mapping | None = ...,
    output: ShapeAndSlice | _Mapping | None = ...,
  ) -> None: ...

class FeedThunk(_message.Message):
  __slots__ = ("buffers", "resources")
  RESOURCES_FIELD_NUMBER: _ClassVar[int]
  BUFFERS_FIELD_NUMBER: _ClassVar[int]
  resources: bytes
  buffers: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  def __init__(
    self,
    resources: bytes | None = ...,
    buffers: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
  ) -> None: ...

class CustomCallBuffers(_message.Message):
  __slots__ = ("arguments", "is_tuple_result", "results")
  ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
  RESULTS_FIELD_NUMBER: _ClassVar[int]
  IS_TUPLE_RESULT_FIELD_NUMBER: _ClassVar[int]
  arguments: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  results: _containers.RepeatedCompositeFieldContainer[ShapeAndSlice]
  is_tuple_result: bool
  def __init__(
    self,
    arguments: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
    results: _Iterable[ShapeAndSlice | _Mapping] | None = ...,
    is_tuple_result: bool = ...,
  ) -> None: ...

class CustomCallThunk(_message.Message):
  __slots__ = ("api_version", "backend_config", "op_buffers", "target_name")
  API_VERSION_FIELD_NUMBER: _ClassVar[int]
  TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
  BACKEND_CONFIG_FIELD_NUMBER: _ClassVar[int]
  OP_BUFFERS_FIELD_NUMBER: _ClassVar[int]
  api_version: int
  target_name: str
  backend_config: bytes
  op_buffers: CustomCallBuffers
  def __init__(
    self,
    api_version: int | None = ...,
    target_name: str | None = ...,
    backend_config: bytes | None = ...,
    op_buffers: CustomCallBuffers | _Mapping | None = ...,
  ) -> None: ...

class LogicalIdThunk(_message.Message):
  __slots__ = ("logical_id_buffer",)
  LOGICAL_ID_BUFFER_FIELD_NUMBER: _ClassVar[int]
  logical_id_buffer: Slice
  def __init__(
    self, logical_id_buffer: Slice | _Mapping | None = ...
  ) -> None: ...

class RngSeedThunk(_message.Message):
  __slots__ = ("destination",)
  DESTINATION_FIELD_NUMBER: _ClassVar[int]
  destination: Slice
  def __init__(self, destination: Slice | _Mapping | None = ...) -> None: ...

class ThunkInfo(_message.Message):
  __slots__ = ("module_id", "module_name", "op_name")
  OP_NAME_FIELD_NUMBER: _ClassVar[int]
  MODULE_NAME_FIELD_NUMBER: _ClassVar[int]
  MODULE_ID_FIELD_NUMBER: _ClassVar[int]
  op_name: str
  module_name: str
  module_id: int
  def __init__(
    self,
    op_name: str | None = ...,
    module_name: str | None = ...,
    module_id: int | None = ...,
  ) -> None: ...

class Thunk(_message.Message):
  __slots__ = (
    "call",
    "collective",
    "conditional",
    "convolution",
    "copy",
    "custom_call",
    "dot",
    "fft",
    "infeed",
    "info",
    "kernel",
    "kind",
    "outfeed",
    "partition_id",
    "replica_id",
    "rng_get_and_update_state",
    "rng_seed",
    "sort",
    "top_k",
    "while_loop",
    "xnn_fusion",
    "ynn_fusion",
  )
  KIND_FIELD_NUMBER: _ClassVar[int]
  INFO_FIELD_NUMBER: _ClassVar[int]
  CALL_FIELD_NUMBER: _ClassVar[int]
  CONDITIONAL_FIELD_NUMBER: _ClassVar[int]
  SORT_FIELD_NUMBER: _ClassVar[int]
  XNN_FUSION_FIELD_NUMBER: _ClassVar[int]
  DOT_FIELD_NUMBER: _ClassVar[int]
  RNG_GET_AND_UPDATE_STATE_FIELD_NUMBER: _ClassVar[int]
  TOP_K_FIELD_NUMBER: _ClassVar[int]
  WHILE_LOOP_FIELD_NUMBER: _ClassVar[int]
  KERNEL_FIELD_NUMBER: _ClassVar[int]
  COPY_FIELD_NUMBER: _ClassVar[int]
  FFT_FIELD_NUMBER: _ClassVar[int]
  INFEED_FIELD_NUMBER: _ClassVar[int]
  OUTFEED_FIELD_NUMBER: _ClassVar[int]
  CUSTOM_CALL_FIELD_NUMBER: _ClassVar[int]
  CONVOLUTION_FIELD_NUMBER: _ClassVar[int]
  COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
  PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
  REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
  YNN_FUSION_FIELD_NUMBER: _ClassVar[int]
  RNG_SEED_FIELD_NUMBER: _ClassVar[int]
  kind: str
  info: ThunkInfo
  call: CallThunk
  conditional: ConditionalThunk
  sort: SortThunk
  xnn_fusion: XnnFusionThunk
  dot: BinaryOperation
  rng_get_and_update_state: RngGetAndUpdateStateThunk
  top_k: TopKThunk
  while_loop: WhileThunk
  kernel: KernelThunk
  copy: CopyThunk
  fft: FftThunk
  infeed: FeedThunk
  outfeed: FeedThunk
  custom_call: CustomCallThunk
  convolution: ConvolutionThunk
  collective: CollectiveThunk
  partition_id: LogicalIdThunk
  replica_id: LogicalIdThunk
  ynn_fusion: YnnFusionThunk
  rng_seed: RngSeedThunk
  def __init__(
    self,
    kind: str | None = ...,
    info: ThunkInfo | _Mapping | None = ...,
    call: CallThunk | _Mapping | None = ...,
    conditional: ConditionalThunk | _Mapping | None = ...,
    sort: SortThunk | _Mapping | None = ...,
    xnn_fusion: XnnFusionThunk | _Mapping | None = ...,
    dot: BinaryOperation | _Mapping | None = ...,
    rng_get_and_update_state: RngGetAndUpdateStateThunk | _Mapping | None = ...,
    top_k: TopKThunk | _Mapping | None = ...,
    while_loop: WhileThunk | _Mapping | None = ...,
    kernel: KernelThunk | _Mapping | None = ...,
    copy: CopyThunk | _Mapping | None = ...,
    fft: FftThunk | _Mapping | None = ...,
    infeed: FeedThunk | _Mapping | None = ...,
    outfeed: FeedThunk | _Mapping | None = ...,
    custom_call: CustomCallThunk | _Mapping | None = ...,
    convolution: ConvolutionThunk | _Mapping | None = ...,
    collective: CollectiveThunk | _Mapping | None = ...,
    partition_id: LogicalIdThunk | _Mapping | None = ...,
    replica_id: LogicalIdThunk | _Mapping | None = ...,
    ynn_fusion: YnnFusionThunk | _Mapping | None = ...,
    rng_seed: RngSeedThunk | _Mapping | None = ...,
  ) -> None: ...

class ThunkSequence(_message.Message):
  __slots__ = ("thunk_resources", "thunks")
  THUNKS_FIELD_NUMBER: _ClassVar[int]
  THUNK_RESOURCES_FIELD_NUMBER: _ClassVar[int]
  thunks: _containers.RepeatedCompositeFieldContainer[Thunk]
  thunk_resources: _containers.RepeatedScalarFieldContainer[bytes]
  def __init__(
    self,
    thunks: _Iterable[Thunk | _Mapping] | None = ...,
    thunk_resources: _Iterable[bytes] | None = ...,
  ) -> None: ...
