"""One real vLLM server for all tests of this folder that need one."""

from support.vllm_server import vllm_server

__all__ = ["vllm_server"]
