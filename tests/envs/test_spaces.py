from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import implicitq
import toys
from implicitq import configs
from implicitq.commands.main import run
from implicitq.envs import space_data, spaces
from implicitq.envs.making import EnvironmentMaker
from implicitq.types import InputError, Spec

BOX = gs.Box(np.array([-1.0, 0.0, 10.0]), np.array([1.0, 5.0, 30.0]), dtype=np.float64)


def test_a_box_is_flattened_row_by_row_as_float32():
    space = gs.Box(-np.inf, np.inf, (2, 2), np.float64)
    one = np.array([[1, 2], [3, 4]], np.float64)
    assert spaces.flatten_one(space, one).tolist() == [1, 2, 3, 4]
    assert spaces.flatten_one(space, one).dtype == np.float32
    rows, batched = spaces.flatten_any(space, np.stack([one, 10 * one]))
    assert batched
    assert rows.tolist() == [[1, 2, 3, 4], [10, 20, 30, 40]]
    assert rows.dtype == np.float32


def test_discrete_observations_become_one_hot_from_their_start():
    space = gs.Discrete(3, start=5)
    rows, batched = spaces.flatten_any(space, 6)
    assert (rows.tolist(), batched) == ([[0, 1, 0]], False)
    rows, batched = spaces.flatten_any(space, np.array([5, 7]))
    assert (rows.tolist(), batched) == ([[1, 0, 0], [0, 0, 1]], True)
    with pytest.raises(InputError, match="outside its 3 values"):
        spaces.flatten_any(space, 8)


def test_multi_discrete_and_multi_binary_observations_are_flattened():
    space = gs.MultiDiscrete([2, 3], start=[0, 1])
    assert spaces.flatten_any(space, np.array([1, 1]))[0].tolist() == [[0, 1, 1, 0, 0]]
    assert spaces.flatten(space, np.array([[0, 3], [1, 2]])).tolist() == [[1, 0, 0, 0, 1], [0, 1, 0, 1, 0]]
    grid = gs.MultiDiscrete(np.array([[2, 2], [2, 3]]))
    assert spaces.flatten_one(grid, np.array([[0, 1], [1, 2]])).tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 1]
    assert spaces.flatten_any(gs.MultiBinary(3), np.array([1, 0, 1], np.int8))[0].tolist() == [[1, 0, 1]]


NESTED = gs.Dict(
    [
        ("z", gs.Tuple([gs.Discrete(2), gs.Box(-1, 1, (2,))])),
        ("a", gs.Box(-1, 1, (1,))),
    ]
)


def test_nested_spaces_are_flattened_by_name_single_and_batched():
    first = {"z": (1, np.array([0.5, -0.5])), "a": np.array([0.25])}
    batch = {"z": (np.array([1, 0]), np.array([[0.5, -0.5], [1, 1]])), "a": np.array([[0.25], [0.75]])}
    assert spaces.flatten_any(NESTED, first)[0].tolist() == [[0.25, 0, 1, 0.5, -0.5]]
    rows, batched = spaces.flatten_any(NESTED, batch)
    assert batched
    assert rows.tolist() == [[0.25, 0, 1, 0.5, -0.5], [0.75, 1, 0, 1, 1]]


def test_the_order_in_which_a_dict_lists_its_parts_does_not_matter():
    parts = {"z": gs.Box(-1, 1, (1,)), "a": gs.Box(-1, 1, (1,))}
    one, other = gs.Dict(list(parts.items())), gs.Dict(list(reversed(parts.items())))
    observation = {"z": np.array([1.0]), "a": np.array([2.0])}
    assert one == other
    assert spaces.flatten_one(one, observation).tolist() == spaces.flatten_one(other, observation).tolist()


@pytest.mark.parametrize("space", [BOX, gs.Discrete(4), gs.MultiDiscrete([2, 3]), gs.MultiBinary(2), NESTED])
def test_flat_size_is_the_length_of_a_flattened_sample(space):
    space.seed(0)
    assert len(spaces.flatten_one(space, space.sample())) == spaces.flat_size(space)


@pytest.mark.parametrize("observation", [np.zeros(4), np.zeros((2, 4)), np.zeros((2, 2, 3)), np.float32(0)])
def test_observations_of_another_shape_are_refused(observation):
    with pytest.raises(InputError, match=r"expected one observation of Box.* or a batch of them, got shape"):
        spaces.flatten_any(BOX, observation)


@pytest.mark.parametrize("observation", [{"b": 1}, 3.0, (1, 2)])
def test_observations_that_miss_a_named_part_are_refused(observation):
    with pytest.raises(InputError, match="expected one observation of Dict"):
        spaces.flatten_any(NESTED, observation)


IMAGE = gs.Box(0, 255, (8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    "space",
    [
        *(gs.Dict(camera=IMAGE), gs.Tuple([gs.Discrete(2), IMAGE])),
        *(gs.Box(0, 255, (8, 8), np.uint8), gs.Box(0, 1, (8, 8, 1)), gs.Box(0, 255, (4, 8, 8, 3), np.uint8)),
    ],
)
def test_images_of_other_kinds_are_refused_and_those_accepted_are_named(space):
    sentence = "look like images; accepted as such are whole observations of type uint8 with three dimensions"
    with pytest.raises(InputError, match=sentence):
        spaces.spec_of(space, BOX)


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((20, 30, 3), (20, 30, 3, False)),
        ((3, 20, 30), (20, 30, 3, True)),
        ((4, 84, 84), (84, 84, 4, True)),
        ((8, 8, 8), (8, 8, 8, False)),
    ],
)
def test_the_channels_of_an_image_are_found_at_either_end(shape, image):
    space = gs.Box(0, 255, shape, np.uint8)
    spec = spaces.spec_of(space, BOX)
    assert (spec.image, spec.observation_dtype, spec.observation_size) == (image, np.uint8, np.prod(shape))
    again = space_data.rebuild(json.loads(json.dumps(space_data.describe(space))))
    assert again == space
    assert len(json.dumps(space_data.describe(space))) < 100


def test_a_torso_of_convolutions_needs_an_image():
    features, image = spaces.spec_of(gs.Discrete(4), BOX), spaces.spec_of(IMAGE, BOX)
    with pytest.raises(InputError, match=r"torso 'cnn' is for images, .* these are 4 features, for which it must be"):
        spaces.for_torso(features, "cnn")
    assert spaces.for_torso(image, "cnn") == spaces.for_torso(image, "auto") == image
    assert spaces.for_torso(image, "mlp").image is None
    assert spaces.for_torso(features, "auto") == features


def test_images_of_another_type_and_a_file_that_describes_too_large_a_one_are_refused():
    assert spaces.flatten_any(IMAGE, np.zeros((2, 8, 8, 3), np.uint8))[0].dtype == np.uint8
    with pytest.raises(InputError, match="images are of type uint8, got float32"):
        spaces.flatten_any(IMAGE, np.zeros((8, 8, 3), np.float32))
    data = {**space_data.describe(IMAGE), "shape": [10**5, 10**5, 3]}
    with pytest.raises(InputError, match="an image has 30,000,000,000 bytes, more than the"):
        space_data.rebuild(data)
    with pytest.raises(InputError, match="a space cannot be made of"):
        space_data.rebuild({**space_data.describe(IMAGE), "high": "256"})


def test_other_observation_spaces_are_refused():
    with pytest.raises(InputError, match=r"observation space Text.* is not supported; accepted are Box, Discrete"):
        spaces.spec_of(gs.Text(5), BOX)
    with pytest.raises(InputError, match="has no features"):
        spaces.spec_of(gs.Box(-1, 1, (0,)), BOX)


HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-1, np.inf), (-np.inf, 1), (-HUGE, HUGE)])
def test_unbounded_actions_are_refused_by_dimension(bounds):
    space = gs.Box(np.array([-1, bounds[0]], np.float32), np.array([1, bounds[1]], np.float32))
    with pytest.raises(InputError, match="action dimension 1 is unbounded"):
        spaces.spec_of(BOX, space)


def test_zero_width_actions_are_refused_by_dimension():
    with pytest.raises(InputError, match=r"action dimension 1 has zero width \(from 2.0 to 2.0\)"):
        spaces.spec_of(BOX, gs.Box(np.array([-1.0, 2.0]), np.array([1.0, 2.0]), dtype=np.float64))


def test_other_action_spaces_are_refused():
    with pytest.raises(InputError, match="Box actions must have a floating-point type, got uint8"):
        spaces.spec_of(BOX, gs.Box(0, 9, (2,), np.uint8))
    with pytest.raises(InputError, match=r"action space Dict.* is not supported"):
        spaces.spec_of(BOX, gs.Dict(a=gs.Discrete(2)))
    with pytest.raises(InputError, match="the action space has no dimensions"):
        spaces.spec_of(BOX, gs.Box(-1, 1, (0,)))


@pytest.mark.parametrize(
    ("action_space", "expected"),
    [
        (BOX, Spec(4, 3, None)),
        (gs.Box(-1, 1, (2, 3)), Spec(4, 6, None)),
        (gs.Discrete(3, start=5), Spec(4, 1, (3,))),
        (gs.MultiDiscrete([2, 4]), Spec(4, 2, (2, 4))),
        (gs.MultiBinary([2, 2]), Spec(4, 4, (2, 2, 2, 2))),
    ],
)
def test_the_spec_says_what_an_algorithm_needs(action_space, expected):
    assert spaces.spec_of(gs.Discrete(4), action_space) == expected


def test_box_coordinates_are_mapped_to_the_bounds_of_each_dimension_and_back():
    coordinates = np.array([[-1, -1, -1], [0, 0, 0], [1, 1, 1], [-0.5, 0.5, 0.1]], np.float32)
    actions = spaces.to_environment(BOX)(coordinates)
    expected = [[-1, 0, 10], [0, 2.5, 20], [1, 5, 30], [-0.5, 3.75, 21]]
    np.testing.assert_allclose(actions, expected, atol=1e-6)
    assert actions.dtype == BOX.dtype
    np.testing.assert_allclose(spaces.from_environment(BOX, actions, 4), coordinates, atol=1e-6)


def test_coordinates_beyond_the_range_stay_within_the_bounds():
    space = gs.Box(np.float32(-0.1), np.float32(0.3), (1,), np.float32)
    actions = spaces.to_environment(space)(np.array([[-7.0], [7.0], [1.0], [-1.0]]))
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize(
    "space",
    [
        gs.Discrete(3, start=5),
        gs.MultiDiscrete([2, 4], start=[1, -1]),
        gs.MultiDiscrete(np.array([[2, 2], [3, 4]])),
        gs.MultiDiscrete([3, 3], dtype=np.int32),
        gs.MultiBinary([2, 2]),
        gs.Box(-3, 5, (2, 2), np.float32),
    ],
)
def test_actions_survive_the_way_to_the_agent_and_back(space):
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(20)])
    back = spaces.to_environment(space)(spaces.from_environment(space, actions, 20))
    np.testing.assert_allclose(back, actions, atol=1e-5)
    assert back.dtype == space.dtype
    assert all(space.contains(action) for action in back)


@pytest.mark.parametrize(
    ("space", "action"), [(gs.Discrete(3), 3), (gs.MultiDiscrete([2, 2]), [0, -1]), (gs.MultiBinary(2), [0, 2])]
)
def test_actions_outside_a_discrete_space_are_refused(space, action):
    with pytest.raises(InputError, match="expected actions of"):
        spaces.from_environment(space, action, 1)


@pytest.mark.parametrize("shape", [(3,), (6,), (3, 2)], ids=["too few", "all in a row", "transposed"])
def test_the_wrong_shape_of_actions_is_refused(shape):
    with pytest.raises(InputError, match=r"expected 2 action\(s\) of Box.*, got shape \("):
        spaces.from_environment(BOX, np.zeros(shape), 2)


@pytest.mark.parametrize(
    ("space", "action", "sentence"),
    [
        (gs.MultiDiscrete([2, 2]), [0.5, 1], "whole numbers, got"),
        (gs.Box(-1, 1, (2,)), [0.0, np.nan], "finite numbers, got"),
        (gs.Discrete(3), "1", "finite numbers, got '1'"),
    ],
)
def test_actions_that_are_no_such_numbers_are_refused(space, action, sentence):
    with pytest.raises(InputError, match=sentence):
        spaces.from_environment(space, action, 1)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        gs.Box(-np.inf, np.inf, (3,), np.float64),
        gs.Box(np.array([-np.inf, -0.1, 1e-45], np.float32), np.array([0.1, np.inf, 3e38], np.float32)),
        gs.Box(0, 255, (3,), np.uint8),
        gs.Box(0, 1, (2,), np.bool_),
        gs.Discrete(3, start=-2),
        gs.MultiDiscrete([2, 4], start=[1, -1]),
        gs.MultiDiscrete([2, 4], dtype=np.int32),
        gs.MultiBinary(3),
        gs.MultiBinary([2, 3]),
        NESTED,
        gym.make("CartPole-v1").observation_space,
    ],
)
def test_a_space_survives_a_file(space):
    rebuilt = space_data.rebuild(json.loads(json.dumps(space_data.describe(space))))
    assert rebuilt == space
    assert space_data.describe(rebuilt) == space_data.describe(space)
    if isinstance(space, gs.Box):
        assert (rebuilt.low == space.low).all()
        assert (rebuilt.high == space.high).all()


def test_spaces_without_a_description_are_refused():
    with pytest.raises(InputError, match="cannot be written to a file"):
        space_data.describe(gs.Text(3))
    with pytest.raises(InputError, match="unknown kind of space 'Graph'"):
        space_data.rebuild({"kind": "Graph"})


class Unbounded(toys.Toy):
    """Its second action has no end, its third none upwards."""

    action_space = gs.Box(np.array([-2, -np.inf, 0], np.float32), np.array([3, np.inf, np.inf], np.float32))
    most = 0.0

    def step(self, action):
        assert action in gs.Box(np.array([-2, -1.5, 0], np.float32), np.array([3, 1.5, 1.5], np.float32))
        Unbounded.most = max(Unbounded.most, abs(action[1]))
        return super().step(action)


gym.register("Unbounded-v0", Unbounded)


def test_the_sentence_about_unbounded_actions_names_a_way_out_that_works(small, small_flags, tmp_path, capsys):
    with pytest.raises(InputError, match=r"action dimension 1 is unbounded .*--action-bound 1.0 \(action_bound=1.0 in"):
        implicitq.make("miq", Unbounded, **small)
    flags = ["--env", "Unbounded-v0", "--action-bound", "1.5", *small_flags, "--out", str(tmp_path / "run")]
    assert run(["train", "miq", *flags]) == 0
    assert Unbounded.most == pytest.approx(1.0)  # the centre of the outermost of three bins
    assert run(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0  # the bound is the policy's


def test_only_what_has_no_bound_gets_one_and_the_policy_keeps_it(small, tmp_path):
    agent = implicitq.make("miq", Unbounded(), action_bound=1.5, **small)
    expected = gs.Box(np.array([-2, -1.5, 0], np.float32), np.array([3, 1.5, 1.5], np.float32))
    assert agent.action_space == expected
    agent.save(tmp_path / "one.policy")
    agent.close()
    loaded = implicitq.load(tmp_path / "one.policy", Unbounded)
    assert loaded.action_space == expected
    assert loaded.evaluate(1).lengths[0] > 0
    toy = toys.Toy()
    assert EnvironmentMaker(toy, action_bound=1.0)() is toy
    assert EnvironmentMaker(toys.DiscreteToy, action_bound=1.0)().action_space == toys.DiscreteToy.action_space


def test_bounds_that_leave_nothing_or_are_none_are_refused():
    class Far(toys.Toy):
        action_space = gs.Box(np.float32(5), np.float32(np.inf), (1,))

    with pytest.raises(InputError, match=r"action_bound 2 leaves nothing of action dimension 0, .* from 5.0 to inf"):
        EnvironmentMaker(Far, action_bound=2.0)()
    for wrong in (0.0, -1.0, float("inf"), "wide"):
        with pytest.raises(InputError, match="action_bound must be"):
            configs.resolve("iq", "Pendulum-v1", action_bound=wrong)
