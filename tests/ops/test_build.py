import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from gagar_mcore.ops import build, library
from gagar_mcore.ops.library import declared

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler is here")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "GCC_FLAGS", ("-std=c++17", "-O0", "-fPIC", "-shared"))  # soon compiled
    return tmp_path


@needs_compiler
def test_builds_at_once_leave_one_whole_library_and_the_next_call_finds_it(empty_cache, monkeypatch):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(build.library_path, ["cpu", "cpu"]))
    assert len(set(paths)) == 1
    declared(paths[0], "cpu")
    assert [p for p in empty_cache.rglob("*") if p.is_file()] == [paths[0]]

    monkeypatch.setattr(build, "compile_library", lambda *_: pytest.fail("compiled again"))
    assert build.library_path("cpu") == paths[0]


def test_a_missing_compiler_is_named_with_the_mend(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match=r"no no-such-compiler is on the PATH: install a C\+\+ compiler, or set CXX"):
        build.library_path("cpu")


@pytest.mark.parametrize("text", ["g++ '-O2", "   '"])
def test_a_command_that_cannot_be_read_is_named(monkeypatch, text):
    monkeypatch.setenv("CXX", text)
    with pytest.raises(build.BuildError, match=r"CXX: .* is no command"):
        build.library_path("cpu")


def test_without_a_home_the_mend_is_named(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(build.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(build.BuildError, match="no home; set XDG_CACHE_HOME"):
        build.cache_folder()


def test_a_compiler_that_hangs_is_stopped(monkeypatch):
    monkeypatch.setattr(build, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(build.BuildError, match="sleep 60 did not finish"):
        build.run(["sleep", "60"])


def test_a_compiler_that_does_not_start_is_named(tmp_path, monkeypatch):
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    with pytest.raises(build.BuildError, match="broken does not start"):
        build.library_path("cpu")


@needs_compiler
def test_a_library_cut_short_is_compiled_again():
    path = build.library_path("cpu")
    path.write_bytes(b"")
    assert library.open_library("cpu") is not None
    assert path.stat().st_size > 0


@needs_compiler
def test_a_compiler_that_refuses_is_quoted(monkeypatch, empty_cache):
    monkeypatch.setattr(build, "GCC_FLAGS", ("--no-such-flag",))
    with pytest.raises(build.BuildError, match="no-such-flag"):
        build.library_path("cpu")
    assert not [p for p in empty_cache.rglob("*.so")]


def test_a_shipped_library_comes_first(monkeypatch, tmp_path):
    (tmp_path / "libgagar_cpu.so").touch()
    monkeypatch.setattr(build, "SHIPPED", tmp_path)
    assert build.library_path("cpu") == tmp_path / "libgagar_cpu.so"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
def test_the_cuda_kernels_compile_for_sm_90_without_spills():
    report = build.register_report()
    assert len([kernel for kernel in report if "step_kernel" in kernel.name]) == 10
    assert all(kernel.spilled_bytes == 0 for kernel in report)
