"""Issues and pull requests of public projects in which each known bug was seen, by the bug's number.

The numbers are those of docs/conformance.md, which describes each bug.
"""

THREADS: dict[int, tuple[str, ...]] = {
    1: ("transformers#25681", "transformers#29285", "gpt-neox#1003", "Megatron-LM#535", "DeepSpeed#4932"),
    2: ("transformers#45902", "transformers#48892", "torchtitan#4817"),
    3: ("unsloth#3699", "transformers#43082", "nnsight#673"),
    4: ("Megatron-LM#453", "torchtitan#2559", "nanoVLM#204"),
    5: ("rotary-embedding-torch#11", "fla#766", "candle#899", "x-transformers#103", "pytorch#108108"),
    6: ("transformers#25104", "transformers#27227", "transformers#33129", "vLLM#3488"),
    7: ("transformers#38224", "vLLM#46280", "DeepSpeed#8345"),
    8: ("transformers#25199", "transformers#39687", "flash-attention#288", "vLLM#34243"),
    9: ("flash-attention#332", "attention-gym#20", "pytorch#145208", "pytorch#145869", "pytorch#157677"),
    10: ("pytorch#148752", "pytorch#141486", "pytorch#136196"),
    11: ("espnet#2816", "espnet#3068", "labml#185"),
    12: ("pytorch-image-models#2541", "pytorch-image-models#1794", "dinov2#378", "Swin#388"),
    13: ("transformers#45381", "vLLM#16878", "vLLM#54498", "mlx-vlm#1619"),
    14: ("detr#251", "vLLM#48894", "diffusers#12656"),
    15: ("torchtitan#15", "pytorch#97562", "vLLM#33800", "onnx#6480"),
    16: ("mlx#3071", "transformers#28380", "TransformerEngine#1046"),
    17: ("Megatron-LM#5243", "VeOmni#448"),
    18: ("pytorch#173958", "multidim-positional-encoding#23", "x-transformers#247"),
    19: ("flashinfer#1606", "torchtitan#4117", "vllm-ascend#14126"),
    20: ("trl#6843", "prime-rl#2392"),
}
