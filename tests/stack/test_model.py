"""`make model` in Docker: from a directory of the operator's into the volume that the engine reads."""

import json
from pathlib import Path

from tests.stack.conftest import write_env
from tests.stack.stack import Stack


def a_model(folder: Path) -> Path:
    """The smallest folder that is a model: a configuration, a tokenizer, one tensor of one number."""
    folder.mkdir()
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    folder.chmod(0o755)
    return folder


def test_a_local_model_arrives_verified_where_the_engine_reads_and_cannot_write(
    stack: Stack, tmp_path: Path
) -> None:
    directory = a_model(tmp_path / "model")
    write_env(stack.home / ".env", {"MODEL_SOURCE": "local", "MODEL_LOCAL_DIR": str(directory)})
    assert "from local" in stack.ops("model").stdout
    home = "/models/Qwen/Qwen2.5-14B-Instruct-AWQ"
    listed = stack.compose("exec", "-T", "vllm", "ls", "-ln", home)
    assert {"config.json", "model.safetensors"} <= {line.split()[-1] for line in listed.splitlines()}
    assert "is complete" in stack.ops("model", "--verify").stdout
    tried = stack.run("docker", "compose", "exec", "-T", "vllm", "touch", f"{home}/new", check=False)
    assert "Read-only file system" in tried.stderr
