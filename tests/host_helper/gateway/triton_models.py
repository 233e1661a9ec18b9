"""Models of Triton's python backend that do what kernels of `tests.support.helper_main` do."""

from __future__ import annotations

from typing import Final

from offpath.cli.bench.request_path.triton_server import PythonModel

_COUNT_CONFIG: Final = """\
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "wish" data_type: TYPE_FP64 dims: [ 4 ] } ]
output [ { name: "value" data_type: TYPE_FP64 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_COUNT: Final = """\
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for each in requests:
            self.answer(each)

    def answer(self, request):
        sender = request.get_response_sender()
        answers, elements, _, fails_at = pb.get_input_tensor_by_name(request, "wish").as_numpy()
        for number in range(1, int(answers) + 1):
            if number == fails_at:
                sender.send(pb.InferenceResponse([], pb.TritonError(f"answer {number}")),
                            flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return
            sender.send(pb.InferenceResponse([pb.Tensor("value", np.full(int(elements), number, np.float64))]))
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_ACCUMULATE_CONFIG: Final = """\
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "total" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "from" data_type: TYPE_INT64 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 4 } ]
sequence_batching {
  max_sequence_idle_microseconds: 10000000
  direct { }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""
_ACCUMULATE: Final = """\
import os
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.states = {}

    def execute(self, requests):
        return [self.answer(each) for each in requests]

    def answer(self, request):
        x, start, end, number = (
            int(pb.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])
            for name in ("x", "START", "END", "CORRID")
        )
        if start:
            self.states[number] = [0, 0]
        if x < 0:
            return pb.InferenceResponse([], pb.TritonError("no negative numbers"))
        state = self.states[number]
        state[0] += 1
        state[1] += x
        seen = np.array([os.getpid(), state[0], number & (1 << 62) - 1, start + 2 * end])
        return pb.InferenceResponse([pb.Tensor("total", np.array([state[1]])), pb.Tensor("from", seen)])
"""
MODELS: Final = {
    "count": PythonModel(_COUNT_CONFIG, _COUNT),
    "accumulate": PythonModel(_ACCUMULATE_CONFIG, _ACCUMULATE),
}
