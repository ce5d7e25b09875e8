"""What the figures of federated rounds draw: means and bands of the seeds, stacked shares, the same bytes twice."""

import matplotlib.image
import numpy as np
import pytest

from collegium.reports.federated_curves import accuracy_figure, save_figure, use_figure

CURVES = {
    "fedavg": [{10: 0.2, 20: 0.4, 30: 0.5}, {10: 0.4, 20: 0.6}],
    "ddome": [{10: 0.3, 20: 0.8}],
}
USES = {
    "ddome": {0: {10: [0.5, 0.3, 0.2], 20: [0.6, 0.4, 0.0]}, 1: {10: [1.0, 0.0, 0.0], 20: [1.0, 0.0, 0.0]}},
    "fedmix": {1: {10: [0.1, 0.9]}},
}


def test_a_line_is_the_mean_of_the_seeds_at_rounds_that_all_have():
    [axes] = accuracy_figure(CURVES, "two classes").axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["fedavg"].get_xdata().tolist() == [10, 20]
    assert lines["fedavg"].get_ydata() == pytest.approx([30, 50])
    assert lines["ddome"].get_ydata() == pytest.approx([30, 80])
    [band] = axes.collections  # one seed has none
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(50 + np.std([40, 60], ddof=1))


def test_the_legend_goes_from_the_best_to_the_worst():
    [legend] = accuracy_figure(CURVES, "two classes").legends
    assert [text.get_text() for text in legend.get_texts()] == ["ddome  80.0", "fedavg  50.0"]


def test_more_methods_than_colours_differ_in_their_dashes():
    [axes] = accuracy_figure({str(number): [{1: 0.5, 2: 0.5}] for number in range(12)}, "").axes
    styles = {(line.get_color(), str(line._dash_pattern)) for line in axes.lines}
    assert len(styles) == 12


def test_shares_are_stacked_to_the_whole_for_each_method_and_seed():
    figure = use_figure(USES, "two classes")
    panels = np.array(figure.axes).reshape(2, 2)
    assert len(panels[0, 0].collections) == 3
    tops = [stack.get_paths()[0].vertices[:, 1].max() for stack in panels[0, 0].collections]
    assert tops == pytest.approx([60, 100, 100])
    assert not panels[1, 0].collections  # that seed was not run
    assert "fedmix" in panels[1, 0].get_ylabel()
    assert [axes.get_title() for axes in figure.axes] == ["seed 0", "seed 1", "", ""]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "round", "round"]


def test_figures_are_written_as_pictures_and_the_same_twice(tmp_path):
    saved = save_figure(accuracy_figure(CURVES, "two $classes"), tmp_path / "figures" / "accuracy")
    assert [path.name for path in saved] == ["accuracy.png", "accuracy.svg"]
    picture = matplotlib.image.imread(saved[0])
    assert picture.shape[1] > picture.shape[0] > 400
    assert picture.std() > 0.05
    assert "two $classes" in saved[1].read_text()
    before = [path.read_bytes() for path in saved]
    save_figure(accuracy_figure(CURVES, "two $classes"), tmp_path / "figures" / "accuracy")
    assert [path.read_bytes() for path in saved] == before
