import numpy as np
import pytest
from pydantic import BaseModel

from rocbake import document
from rocbake.document import DocumentError
from rocbake.errors import RecipeError
from rocbake.kernel import KernelTest

GOOD = """
kernels:
  - name: scale
    file: lib/libscale.so
    symbol: _Z5scalePfS_fi
    grid: [2, 1, 1]
    block: [256, 1, 1]
    arguments:
      - {name: x, type: f32, fill: i * 0.1, count: 300}
      - {name: out, type: f32, fill: "0", count: 300}
      - {name: by, type: f32, value: 2.5}
      - {name: count, type: i32, value: 299}
    expect:
      - {argument: out, equals: "where(i < count, x * by, 0)", within: 1e-6}
"""


class Kernels(BaseModel):
    kernels: tuple[KernelTest, ...]


@pytest.fixture
def read(tmp_path, monkeypatch):
    def read_text(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return document.read(path, Kernels).value.kernels

    monkeypatch.chdir(tmp_path)
    return read_text


def test_a_test_is_read(read):
    (test,) = read(GOOD)

    assert (test.name, test.file, test.symbol) == ("scale", "lib/libscale.so", "_Z5scalePfS_fi")
    assert (test.grid, test.block) == ((2, 1, 1), (256, 1, 1))
    assert [one.value for one in test.arguments] == [None, None, 2.5, 299]
    assert type(test.arguments[3].value) is int
    assert test.expect[0].within == 1e-6


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: scale", "name: Scale It", "3:11: kernels.0.name: "),
        ("lib/libscale.so", "/lib/x", "4:11: kernels.0.file: expected a relative path"),
        ("lib/libscale.so", "lib/../x", "4:11: kernels.0.file: expected a relative path"),
        ("lib/libscale.so", "lib/*.so", "4:11: kernels.0.file: expected a relative path"),
        ("_Z5scalePfS_fi", "scale it", "5:13: kernels.0.symbol: "),
        ("[2, 1, 1]", "[2, 1]", "6:11: kernels.0.grid: expected three numbers, for x, y and z"),
        ("[2, 1, 1]", "[2, 0, 1]", "6:15: kernels.0.grid.1: "),
        ("[256, 1, 1]", "[256, 4, 2]", "7:12: kernels.0.block: expected at most 1024 work-items"),
        ("f32, value: 2.5", "f16, value: 2.5", "11:26: kernels.0.arguments.2.type: "),
        ("value: 2.5", "value: much", "11:38: kernels.0.arguments.2.value: expected a number"),
        ("value: 2.5", "value: 1e39", "arguments.2.value: expected a finite f32"),
        ("value: 2.5", "value: nan", "arguments.2.value: expected a number"),
        (
            "value: 299",
            "value: 2.5",
            "value: expected a whole number from -2147483648 to 2147483647",
        ),
        ("value: 299", "value: 2147483648", "12:41: kernels.0.arguments.3.value: expected a whole"),
        (
            "value: 299",
            "values: [7, 2147483648]",
            "12:46: kernels.0.arguments.3.values.1: expected",
        ),
        ("value: 299", "values: []", "arguments.3.values: expected at least one item"),
        (
            "value: 299",
            "count: 299",
            "12:9: kernels.0.arguments.3: expected one of the keys value,",
        ),
        ("value: 299", "value: 1, fill: i, count: 2", "expected one of the keys value, values"),
        ("value: 299", "value: 1, count: 2", "12:9: kernels.0.arguments.3: expected count with"),
        (
            ", count: 300}\n      - {name: o",
            "}\n      - {name: o",
            "9:9: kernels.0.arguments.0: expect",
        ),
        ("name: by", "name: x", "11:16: kernels.0.arguments.2.name: the index, a function or an"),
        ("name: by", "name: i", "arguments.2.name: the index, a function or an argument"),
        ("name: by", "name: sum", "arguments.2.name: the index, a function or an argument"),
        ("name: by", "nme: by", "unknown key 'nme'; did you mean 'name'?"),
        ("i * 0.1", "i * x", "9:36: kernels.0.arguments.0.fill: there is no 'x'; known are i"),
        ("i * 0.1", "i ! 0.1", "9:36: kernels.0.arguments.0.fill: invalid syntax, at character"),
        (
            "x * by, 0)",
            "y * by, 0)",
            "14:33: kernels.0.expect.0.equals: there is no 'y'; known are by",
        ),
        ("x * by, 0)", "x * by)", "equals: where takes 3 arguments, got 2, at character 1"),
        ("within: 1e-6", "within: -1", "14:72: kernels.0.expect.0.within: "),
        ("within: 1e-6", "within: inf", "14:72: kernels.0.expect.0.within: "),
        ("argument: out", "argument: by", "14:20: kernels.0.expect.0.argument: expected a buffer"),
        (
            "argument: out",
            "argument: up",
            "expect.0.argument: expected a buffer among the arguments",
        ),
        (
            "within: 1e-6}",
            "within: 1}\n      - {argument: out, equals: x}",
            "15:20: kernels.0.expect.1.argument: expected a buffer among the arguments, once",
        ),
        ("equals: ", 'equals: "", x: ', "equals: expected some text"),
    ],
)
def test_every_fault_is_told_where_it_stands(read, old, new, message):
    assert GOOD.count(old) == 1

    with pytest.raises(DocumentError) as told:
        read(GOOD.replace(old, new))

    assert str(told.value).startswith("recipe.yaml:")
    assert message in str(told.value)


def test_all_faults_between_the_parts_are_told_at_once(read):
    text = GOOD.replace("i * 0.1", "z").replace("x * by", "y").replace("value: 299", "value: 9.5")

    with pytest.raises(DocumentError) as told:
        read(text)

    assert [problem.line for problem in told.value.problems] == [9, 12, 14]


def kernel(arguments, expect):
    return KernelTest.model_validate(
        {
            "name": "one",
            "file": "f",
            "symbol": "s",
            "grid": [1, 1, 1],
            "block": [1, 1, 1],
            "arguments": arguments,
            "expect": expect,
        }
    )


def ints(**buffers):
    return [{"name": name, "type": "i32", "values": values} for name, values in buffers.items()]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ({"type": "i32", "values": ["-1", "2"]}, np.array([-1, 2], "<i4")),
        ({"type": "u8", "value": "255"}, np.array([255], "<u1")),
        ({"type": "u64", "value": str(2**64 - 1)}, np.array([2**64 - 1], "<u8")),
        ({"type": "i64", "value": str(-(2**63))}, np.array([-(2**63)], "<i8")),
        ({"type": "f64", "values": ["0.1", "1e300", "3"]}, np.array([0.1, 1e300, 3], "<f8")),
        (
            {"type": "u32", "fill": "i * 3000000000 % 4294967296", "count": 3},
            [0, 3 * 10**9, 1705032704],
        ),
        ({"type": "f32", "fill": "i / 3", "count": 2}, np.array([0, 1 / 3], "<f4")),
        ({"type": "f32", "fill": "7", "count": 2}, np.array([7, 7], "<f4")),
    ],
)
def test_arguments_are_filled_in_their_types(argument, expected):
    test = kernel([{"name": "a"} | argument, *ints(b=[1])], [{"argument": "b", "equals": "b"}])

    found = test.inputs()["a"]

    assert found.dtype == np.dtype(test.arguments[0].dtype)
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("kind", "fill", "message"),
    [
        ("u8", "i + 254", "one: fill of a: expected a whole number from 0 to 255; got 256"),
        ("i32", "i / 2", "one: fill of a: expected a whole number from"),
        ("f32", "1 / i", "one: fill of a: expected a finite f32; got inf"),
        ("f32", "0 / i", "one: fill of a: expected a finite f32; got nan"),
        ("i32", "1 // i", "one: fill of a: 1 // i: integer division or modulo by zero"),
        ("i32", "reshape(i, 2, 2)", "one: fill of a: reshape(i, 2, 2): cannot reshape"),
    ],
)
def test_what_a_buffer_cannot_be_filled_with_is_told(kind, fill, message):
    test = kernel(
        [{"name": "a", "type": kind, "fill": fill, "count": 3}], [{"argument": "a", "equals": "0"}]
    )

    with pytest.raises(RecipeError) as told:
        test.inputs()

    assert str(told.value).startswith(message)


def wrong(test, **outputs):
    inputs = test.inputs()
    given = {name: inputs[name].copy() for name in inputs if name in {"a", "b"}}
    for name, values in outputs.items():
        given[name] = np.array(values, dtype=given[name].dtype)
    return test.wrong(inputs, given)


def test_results_are_compared_exactly():
    test = kernel(ints(a=[1, 2, 3], b=[0, 0, 0]), [{"argument": "b", "equals": "a + 1"}])

    assert wrong(test, b=[2, 3, 4]) == ""
    assert wrong(test, b=[2, 4, 5]) == "b[1] is 4, expected 3; 2 of 3 elements differ"


def test_an_expectation_is_of_the_arguments_as_they_were_before():
    test = kernel(ints(a=[1, 2]), [{"argument": "a", "equals": "a + 1"}])

    assert wrong(test, a=[2, 3]) == ""
    assert wrong(test, a=[1, 2]) == "a[0] is 1, expected 2; 2 of 2 elements differ"


def test_a_value_is_a_number_in_an_expression():
    arguments = [*ints(a=[1, 2, 3, 4]), {"name": "rows", "type": "i32", "value": 2}]
    test = kernel(arguments, [{"argument": "a", "equals": "reshape(a, rows, 2) * rows"}])

    assert wrong(test, a=[2, 4, 6, 8]) == ""


def test_what_the_kernel_reads_is_what_expressions_read():
    arguments = [
        {"name": "a", "type": "f32", "values": [0.1]},
        {"name": "b", "type": "f64", "values": [0]},
    ]
    test = kernel(arguments, [{"argument": "b", "equals": "a"}])

    assert wrong(test, b=[np.float64(np.float32(0.1))]) == ""
    assert "expected 0.10000000149011612" in wrong(test, b=[0.1])


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ([1, 2.25], ""),
        ([1, 1.75], ""),
        ([1, 2.5], "b[1] is 2.5, expected 2 within 0.25; the largest error is 0.5; 1 of 2"),
        ([float("nan"), 2], "b[0] is nan, expected 1 within 0.25"),
        ([float("inf"), 2], "b[0] is inf, expected 1 within 0.25"),
    ],
)
def test_results_are_compared_within_an_error(result, told):
    test = kernel(
        [*ints(a=[1, 2]), {"name": "b", "type": "f32", "values": [0, 0]}],
        [{"argument": "b", "equals": "a", "within": 0.25}],
    )

    found = wrong(test, b=result)

    assert found.startswith(told)
    assert bool(found) is bool(told)


def test_what_is_expected_to_be_no_number_never_is():
    arguments = [{"name": "b", "type": "f32", "values": [0]}]

    exact = kernel(arguments, [{"argument": "b", "equals": "0 / 0"}])
    within = kernel(arguments, [{"argument": "b", "equals": "0 / 0", "within": 1}])

    assert wrong(exact, b=[float("nan")])
    assert wrong(within, b=[float("nan")])
    assert wrong(within, b=[1])


def test_a_buffer_without_an_expectation_must_stay_as_it_was():
    test = kernel(ints(a=[1, 2], b=[0, 0]), [{"argument": "b", "equals": "0"}])

    assert wrong(test) == ""
    assert wrong(test, a=[1, 7]) == (
        "a[1] is 7, expected 2; 1 of 2 elements differ; nothing was to change there"
    )


def test_zero_that_changed_its_sign_has_changed():
    arguments = [{"name": "a", "type": "f32", "values": [0]}, *ints(b=[0])]
    test = kernel(arguments, [{"argument": "b", "equals": "0"}])

    assert wrong(test, a=[-0.0]) == "a was written to; nothing was to change there"


def test_an_expectation_of_what_is_no_buffer_is_no_pass():
    test = kernel(ints(a=[1, 2], struct=[1, 2]), [{"argument": "struct", "equals": "struct"}])

    assert wrong(test) == "struct is passed by value, so no result can be in it"


@pytest.mark.parametrize(
    ("equals", "message"),
    [
        ("reshape(a, 1, 2) @ reshape(a, 1, 2)", "one: result of a: reshape(a, 1, 2) @"),
        ("a // 0", "one: result of a: a // 0: integer division or modulo by zero"),
        ("c", "one: result of a: c: expected 2 elements, got 3"),
    ],
)
def test_an_expectation_that_cannot_be_computed_is_told(equals, message):
    test = kernel(ints(a=[1, 2], c=[1, 2, 3]), [{"argument": "a", "equals": equals}])

    with pytest.raises(RecipeError) as told:
        wrong(test)

    assert str(told.value).startswith(message)
