import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import expression

X = expression.exact(np.array([1, 2, 3, 4, 5, 6], dtype="<i4"))
F = expression.exact(np.array([0.5, -1.5, 2, 4, 0, 1], dtype="<f4"))
NAMES = {"x": X, "f": F, "n": expression.exact(np.array(3))}


def evaluate(text, count=6):
    return list(expression.evaluate(text, NAMES, count))


def test_examples_of_the_module():
    assert doctest.testmod(expression) == (0, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7] * 6),
        ("x", [1, 2, 3, 4, 5, 6]),
        ("i", [0, 1, 2, 3, 4, 5]),
        ("x * n + 1", [4, 7, 10, 13, 16, 19]),
        ("-x // 2", [-1, -1, -2, -2, -3, -3]),
        ("(i - 3) % 5", [2, 3, 4, 0, 1, 2]),
        ("x / 2", [0.5, 1, 1.5, 2, 2.5, 3]),
        ("2 ** i", [1, 2, 4, 8, 16, 32]),
        ("2 ** -1", [0.5] * 6),
        ("+f", [0.5, -1.5, 2, 4, 0, 1]),
        ("sum(x)", [21] * 6),
        ("sum(f)", [6] * 6),
        ("abs(f)", [0.5, 1.5, 2, 4, 0, 1]),
        ("minimum(x, 3)", [1, 2, 3, 3, 3, 3]),
        ("maximum(f, x)", [1, 2, 3, 4, 5, 6]),
        ("where(x > 3, x, -1)", [-1, -1, -1, 4, 5, 6]),
        ("where(i, 1, 0)", [0, 1, 1, 1, 1, 1]),
        ("(x >= 3) + (x == 1)", [1, 0, 1, 1, 1, 1]),
        ("sum(x != 2)", [5] * 6),
        ("x < 2", [1, 0, 0, 0, 0, 0]),
        ("x <= 2", [1, 1, 0, 0, 0, 0]),
        ("sqrt(x * x)", [1, 2, 3, 4, 5, 6]),
        ("exp(0)", [1] * 6),
        ("reshape(x, 2, n)", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_values(text, expected):
    assert evaluate(text) == expected


def test_functions_of_the_real_numbers():
    assert evaluate("tanh(f)") == pytest.approx([math.tanh(value) for value in F])
    assert evaluate("erf(f)") == pytest.approx([math.erf(value) for value in F])
    assert evaluate("exp(x)") == pytest.approx([math.exp(value) for value in X])


def test_a_product_of_matrices_is_told_row_by_row():
    assert evaluate("reshape(x, 2, 3) @ reshape(x, 3, 2)", 4) == [22, 28, 49, 64]
    assert evaluate("reshape(x, 2, 3) @ reshape(f, 3, 2)", 4) == pytest.approx([4.5, 9.5, 12, 20])


def test_whole_numbers_are_exact():
    large = {"x": expression.exact(np.array([2**64 - 1] * 3, dtype="<u8"))}

    assert list(expression.evaluate("sum(x) * x", large, 3)) == [3 * (2**64 - 1) ** 2] * 3
    assert list(expression.evaluate("sum(x) % 4294967296", large, 1)) == [4294967293]


def test_what_is_no_number_stays_none():
    assert math.isnan(evaluate("0 / 0")[0])
    assert evaluate("1 / 0")[0] == math.inf
    assert math.isnan(evaluate("sqrt(-1)")[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid syntax, at character 1"),
        ("x +", "invalid syntax, at character "),
        ("x + (1", "was never closed, at character 5"),
        ("x.shape", "there is no Attribute here, at character 1"),
        ("1 + x[0]", "there is no Subscript here, at character 5"),
        ("__import__('os')", "the functions are sum, exp,"),
        ("sum(x)(1)", "the functions are"),
        ("sum(x, axis=0)", "the functions are"),
        ("sum(*x)", "there is no Starred here, at character 5"),
        ("minimum(x)", "minimum takes 2 arguments, got 1, at character 1"),
        ("1 < x < 3", "expected one of == != < <= > >=, once, at character 1"),
        ("x in x", "expected one of =="),
        ("x and 1", "there is no BoolOp here"),
        ("not x", "there is no Not here"),
        ("x & 1", "there is no BitAnd here"),
        ("~x", "there is no Invert here"),
        ("'text'", "expected a number, got 'text'"),
        ("True", "expected a number, got True"),
        ("1j", "expected a number, got 1j"),
        ("1e999", "expected a number, got inf"),
        ("lambda: 1", "there is no Lambda here"),
        ("[1 for x in x]", "there is no ListComp here"),
        ("x := 1", "invalid syntax"),
        ("(x := 1)", "there is no NamedExpr here"),
        ("1; 2", "invalid syntax"),
        ("-" * 5_000 + "1", "nested too deeply"),
    ],
)
def test_what_is_no_expression_is_told(text, message):
    with pytest.raises(ValueError, match=r".") as told:
        expression.check(text)

    assert message in str(told.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sum(x) // 0", "division or modulo by zero"),
        ("x % (i - 5)", "modulo by zero"),
        ("2 ** 5000", "a power of more than 4096 bits"),
        ("(9 ** 9) ** (9 ** 9)", "a power of more than 4096 bits"),
        ("x @ x", "@ takes two matrices: see reshape"),
        ("reshape(x, 2, 3) @ reshape(x, 2, 3)", "mismatch"),
        ("reshape(x, 4, 2)", "cannot reshape"),
        ("reshape(x, 0, 6)", "expected numbers of rows and columns, got 0 and 6"),
        ("reshape(x, 2.0, 3)", "expected numbers of rows and columns"),
        ("reshape(x, x, 3)", "size 1"),
        ("reshape(x, 2, 3) + reshape(x, 3, 2)", "shape mismatch"),
        ("sum(x) + reshape(x, 1, 6) + reshape(x, 6, 1)", "expected 6 elements, got 36"),
        ("reshape(x, 6, 1) * reshape(x, 1, 6)", "expected 6 elements, got 36"),
    ],
)
def test_what_cannot_be_computed_is_told(text, message):
    with pytest.raises(ValueError, match=r".") as told:
        evaluate(text)

    assert str(told.value).startswith(f"{text}: ")
    assert message in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "reshape(x, 5000, 1) + reshape(x, 1, 5000)",
        "reshape(x, 5000, 1) @ reshape(x, 1, 5000)",
        "reshape(x, 5000, 1) > reshape(x, 1, 5000)",
        "minimum(reshape(x, 5000, 1), reshape(x, 1, 5000))",
        "where(reshape(x, 5000, 1), 1, reshape(x, 1, 5000))",
    ],
)
def test_no_result_is_larger_than_a_test_can_need(text):
    with pytest.raises(ValueError, match="a result of 5000 x 5000 elements"):
        expression.evaluate(text, {"x": np.zeros(5000, dtype=object)}, 1)


@given(st.text(alphabet="xfni 0123456789.+-*/%@()<>=,sumabwhere\n'\0[]", max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_text_is_an_expression_or_one_error(text):
    try:
        expression.check(text)
        names = expression.names(text)
    except ValueError:
        return
    if set(names) <= {"x", "f", "n", "i"}:
        try:
            value = expression.evaluate(text, NAMES, 6)
        except ValueError:
            return
        assert value.shape == (6,)
