"""`transformers serve` answers from an exported folder, and from a unified one with the launcher of the docs."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from collegium.unify.export import export_model
from families import WORDS, tiny_seed, tiny_unified

for package in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(package)
pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"
LAUNCHER = re.search(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[1]
COMMAND = "from transformers.cli.transformers import main; import sys; sys.argv[1:1] = ['serve']; main()"
PROMPT, NEW = "w5 w9 w12 w33", 8


def write_tokenizer(folder):
    words = ["[PAD]", "<s>", "</s>", *(f"w{index}" for index in range(3, WORDS))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = Whitespace()
    special = {"pad_token": "[PAD]", "bos_token": "<s>", "eos_token": "</s>"}
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special).save_pretrained(folder)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def served(program, folder, home):
    """A server on the loopback interface, offline, for the time of the block."""
    port = free_port()
    arguments = [str(folder), "--device", "cpu", "--host", "127.0.0.1", "--port", str(port), "--log-level", "info"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        said = []
        while "Uvicorn running" not in (line := process.stderr.readline()):
            said.append(line)
            assert line, "".join(said)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def answer(address, folder):
    asked = {"model": str(folder), "messages": [{"role": "user", "content": PROMPT}]}
    body = json.dumps(asked | {"max_tokens": NEW, "temperature": 0, "stream": False}).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("context", ["token", "causal"])
def test_a_served_model_says_what_the_unified_model_says(context, tmp_path):
    model = tiny_unified(tiny_seed("qwen3"), noise=0.1, context=context, decide="every-layer", experts_per_token=2)
    folder, program = tmp_path / "unified", LAUNCHER
    if context == "token":
        for router in model.routers.values():
            router.centre.data.zero_()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if context == "token":
        program = COMMAND
        export_model(folder, "qwen3-moe", tmp_path / "exported")
        shutil.rmtree(folder)
        folder = tmp_path / "exported"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :]
    assert len(expected) > 2
    with served(program, folder, tmp_path / "home") as address:
        assert answer(address, folder).endswith(tokenizer.decode(expected, skip_special_tokens=True))
