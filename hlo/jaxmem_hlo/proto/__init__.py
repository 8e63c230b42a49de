"""Minimal protocol buffer messages for HLO modules and CPU executables."""

from jaxmem_hlo.proto import cpu_executable_pb2, hlo_pb2

__all__ = ["cpu_executable_pb2", "hlo_pb2"]
