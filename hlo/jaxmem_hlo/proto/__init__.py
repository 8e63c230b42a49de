"""Minimal protocol buffer messages: HLO modules, CPU executables, traces."""

from jaxmem_hlo.proto import cpu_executable_pb2, hlo_pb2, xplane_pb2

__all__ = ["cpu_executable_pb2", "hlo_pb2", "xplane_pb2"]
