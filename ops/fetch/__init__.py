"""`python -m ops.fetch` gets a model's weights once, resumably and verified, inside the `model` service.

Needs the standard library and the dependency group `model` (huggingface_hub, modelscope), nothing else.
"""
