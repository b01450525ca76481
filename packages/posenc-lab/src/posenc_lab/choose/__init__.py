"""Recommends a scheme by five questions, with the evidence for each answer.

The explorer uses the same files. Nothing here imports torch.

``questions.json`` has the questions, in order, and the answers. An option of a question has a ``value`` (for
``posenc choose --NAME VALUE``), a ``label``, and ``needs``: the setting of the explorer's filter, or null for no
filter. The first option is the default. An answer's ``when`` maps each question it depends on to the values that lead
to it; every combination of values leads to exactly one answer. Of the tables and statements that an answer names,
``rests_on`` names those that speak for it; the strongest of these gives the strength of the recommendation, one of
`posenc_lab.choose.evidence.STRENGTHS`. Where a paper and posenc's own measurements differ, ``instead`` has what the
latter speak for, and their names, with a strength of their own.

``evidence.json`` has tables of published figures and posenc's own, `posenc_lab.choose.evidence.PublishedTable`, and
statements without figures, `posenc_lab.choose.evidence.Statement`. ``study.json`` has tables of the study, written
from its records.

``claims.json`` has published claims that are tested here with several seeds. A claim has

- ``name``, which answers refer to, and ``question``, the kind of evidence, as for the tables;
- ``contrast``: two schemes, as posenc compare takes them; differences are the first's loss minus the second's;
- ``length``: the bytes of the test windows; the models were trained on 128;
- ``published``: {``claim`` in words, ``verdict``, ``source``, ``url``}, the verdict one of "lower", "higher", "tied";
- ``ours``: the result on each text: null until it is measured, or {``status``: "not run", ``why``}, or
  {``status``: "measured", ``mean``, ``low``, ``high``, ``verdict``, ``seeds``, ``agrees``}: the mean difference in bits
  per byte and its 95 % interval, "lower", "higher", "tied" or "undecided", the number of seeds, and whether the verdict
  is the published one: "yes", "no" or "undecided".
"""
