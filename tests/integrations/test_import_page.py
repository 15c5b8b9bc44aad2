"""What docs/import.md says, run as printed."""

import shlex
import sys

from doc_blocks import DOCS, block, run, text

IMPORT = DOCS / "import.md"


def test_the_import_page(tmp_path, monkeypatch, capsys):
    printed = run(f"({text('import', 'sh', IMPORT)}) 2> refused", tmp_path)
    assert printed == text("counts", "text", IMPORT)
    assert (tmp_path / "refused").read_text() == text("refused", "text", IMPORT)
    monkeypatch.chdir(tmp_path)
    exec(block("export", IMPORT), {})
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert capsys.readouterr().out.split(" ", 1)[1] == f"['user', 'assistant'] {messages}\n"


def test_importing_needs_neither_torch_nor_numpy(tmp_path):
    script = "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'yaml']))\n"
    code = f"{script}import gagar_mcore.integrations.imports.command"
    assert run(shlex.join([sys.executable, "-c", code]), tmp_path) == ""
