"""OpenVINO GenAI's continuous batching pipeline, a step at a time."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai

from comparison.protocol import Load, Request
from workers.loop import TokenTimes, serve
from workers.onednn_isa import onednn_output, told

BATCHED_TOKENS = 512
GIGABYTE = 1 << 30
PRODUCT = """
import numpy as np, openvino as ov
from openvino import opset13 as op
a = op.parameter([16, 64], np.float32)
product = op.matmul(a, op.constant(np.ones((64, 64), np.float32)), False, False)
model = ov.Model([product], [a])
compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
compiled({0: np.ones((16, 64), np.float32)})
"""
"""A product in bfloat16, which the oneDNN in it computes."""


class OpenVino:
    def load(self, options: Load) -> dict[str, str]:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = int(
            options.settings.get("max_num_batched_tokens", BATCHED_TOKENS)
        )
        scheduler.max_num_seqs = options.max_sequences
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        # In gigabytes, of a cache in 8 bits with its scales.
        scheduler.cache_size = -(-options.kv_bytes // (2 * GIGABYTE)) + 1
        properties = {
            "INFERENCE_NUM_THREADS": options.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": "u8",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": int(
                options.settings.get("dynamic_quantization_group_size", "32")
            ),
        }
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            options.model, scheduler, "CPU", properties
        )
        self.next_id = 0
        return {
            "openvino": openvino.get_version(),
            "openvino_genai": openvino_genai.__version__,
            "isa": f"oneDNN {told(onednn_output(PRODUCT))}",
            "max_num_batched_tokens": str(scheduler.max_num_batched_tokens),
            "cache_size_gb": str(scheduler.cache_size),
            **{name.lower(): str(value) for name, value in properties.items()},
        }

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is not None:
            raise RuntimeError("OpenVINO GenAI has no server of its own")
        offers = []
        for request in requests:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = request.output
            config.ignore_eos = True
            config.do_sample = False
            ids = np.array([request.prompt], np.int64)
            offers.append((openvino.Tensor(ids), config))
        times.start()
        handles = []
        for ids, config in offers:
            handles.append(self.pipeline.add_request(self.next_id, ids, config))
            self.next_id += 1
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for i, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        times.add(i, len(output.generated_ids))

    def close(self) -> None:
        """The process ends with it."""


if __name__ == "__main__":
    serve(OpenVino())
