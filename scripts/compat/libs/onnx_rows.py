#: title: onnxruntime's CUDA provider
#: part: 2
#: note: the installed onnxruntime has no CUDA provider; its CPU provider answers on both sides
import compat
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])
model = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [x], [y]),
                          opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
wanted = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in ort.get_available_providers()]
compat.fact("providers", wanted)
s = ort.InferenceSession(model.SerializeToString(), providers=wanted)
compat.show("y", s.run(None, {"x": np.arange(16, dtype=np.float32).reshape(4, 4)})[0])
