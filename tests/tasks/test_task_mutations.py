from gagar_mcore.randomness import python_rng
from gagar_mcore.tasks.evaluate import compile_function, outcome
from gagar_mcore.tasks.mutations import mutations
from gagar_mcore.tasks.templates import TEMPLATES, draw_argument, with_constant


def test_every_template_is_sound() -> None:
    """Compiles, uses the shared parameter names, and returns on most drawn arguments."""
    assert len(TEMPLATES) == 24
    rng = python_rng(1, "test")
    for name, template in TEMPLATES.items():
        assert template.source.startswith(f"def {name}({', '.join(template.parameters)}):\n    ")
        function = compile_function(with_constant(template.source, 4), name)
        outcomes = [outcome(function, [draw_argument(kind, rng) for kind in template.kinds]) for _ in range(60)]
        assert len(set(outcomes)) > 1
        assert sum(o is not None and not o.startswith("err ") for o in outcomes) >= 30


def test_a_mutation_changes_one_line_below_the_header_and_still_compiles() -> None:
    total = 0
    for name, template in TEMPLATES.items():
        lines = template.source.split("\n")
        texts = {(m.line, m.text) for m in mutations(name)}
        assert len(texts) == len(mutations(name)) >= 2
        for line, text in texts:
            assert 0 < line < len(lines) and text != lines[line]
            mutated = [*lines[:line], text, *lines[line + 1 :]]
            compile_function(with_constant("\n".join(mutated), 4), name)
        total += len(texts)
    assert 180 <= total <= 260


def test_outcomes_are_reprs_errors_or_none_for_an_endless_loop() -> None:
    assert outcome(compile_function("def f(x):\n    return x + ['a']", "f"), [[1]]) == "[1, 'a']"
    assert outcome(compile_function("def f(x):\n    return x[9]", "f"), [[1]]) == "err IndexError"
    endless = "def f(x):\n    try:\n        while True:\n            x = 1\n    except Exception:\n        return 0"
    assert outcome(compile_function(endless, "f"), [0]) is None


def test_an_outcome_leaves_the_arguments_as_they_were() -> None:
    argument = [1, 2]
    outcome(compile_function("def f(x):\n    x.append(3)\n    return x", "f"), [argument])
    assert argument == [1, 2]
