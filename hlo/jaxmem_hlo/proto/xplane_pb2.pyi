from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class Trace(_message.Message):
  __slots__ = ("hostnames", "planes")
  PLANES_FIELD_NUMBER: _ClassVar[int]
  HOSTNAMES_FIELD_NUMBER: _ClassVar[int]
  planes: _containers.RepeatedCompositeFieldContainer[TracePlane]
  hostnames: _containers.RepeatedScalarFieldContainer[str]
  def __init__(
    self,
    planes: _Iterable[TracePlane | _Mapping] | None = ...,
    hostnames: _Iterable[str] | None = ...,
  ) -> None: ...

class TracePlane(_message.Message):
  __slots__ = ("event_metadata", "name", "stat_metadata")
  class EventMetadataEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: int
    value: TraceEvent
    def __init__(
      self, key: int | None = ..., value: TraceEvent | _Mapping | None = ...
    ) -> None: ...

  class StatMetadataEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: int
    value: TraceStatName
    def __init__(
      self, key: int | None = ..., value: TraceStatName | _Mapping | None = ...
    ) -> None: ...

  NAME_FIELD_NUMBER: _ClassVar[int]
  EVENT_METADATA_FIELD_NUMBER: _ClassVar[int]
  STAT_METADATA_FIELD_NUMBER: _ClassVar[int]
  name: str
  event_metadata: _containers.MessageMap[int, TraceEvent]
  stat_metadata: _containers.MessageMap[int, TraceStatName]
  def __init__(
    self,
    name: str | None = ...,
    event_metadata: _Mapping[int, TraceEvent] | None = ...,
    stat_metadata: _Mapping[int, TraceStatName] | None = ...,
  ) -> None: ...

class TraceEvent(_message.Message):
  __slots__ = ("id", "name", "stats")
  ID_FIELD_NUMBER: _ClassVar[int]
  NAME_FIELD_NUMBER: _ClassVar[int]
  STATS_FIELD_NUMBER: _ClassVar[int]
  id: int
  name: str
  stats: _containers.RepeatedCompositeFieldContainer[TraceStat]
  def __init__(
    self,
    id: int | None = ...,
    name: str | None = ...,
    stats: _Iterable[TraceStat | _Mapping] | None = ...,
  ) -> None: ...

class TraceStatName(_message.Message):
  __slots__ = ("id", "name")
  ID_FIELD_NUMBER: _ClassVar[int]
  NAME_FIELD_NUMBER: _ClassVar[int]
  id: int
  name: str
  def __init__(self, id: int | None = ..., name: str | None = ...) -> None: ...

class TraceStat(_message.Message):
  __slots__ = ("bytes_value", "metadata_id")
  METADATA_ID_FIELD_NUMBER: _ClassVar[int]
  BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
  metadata_id: int
  bytes_value: bytes
  def __init__(
    self, metadata_id: int | None = ..., bytes_value: bytes | None = ...
  ) -> None: ...
