"""Which scheme to begin with: five questions, the answers they lead to, and what is known of each.

The explorer asks the same of the same files. None of this imports torch.

``questions.json`` has the questions, in order, and the answers. An option of a question has a ``value``, which is what
``posenc choose --NAME VALUE`` takes, a ``label``, and ``needs``: what it asks of the explorer's filter, or null where
nothing need be filtered. The first option is the default. An answer says ``when`` it is given: of each question that it
depends on, the values that lead to it; every set of values leads to exactly one.

``evidence.json`` has tables of figures, published ones and posenc's own: `posenc.tools.choose.evidence.Table`.

``claims.json`` has published claims that are put to a test here, with several seeds. A claim is

- ``name``, by which answers name it, and ``question``, the kind of evidence that it is: "length", as of the tables;
- ``contrast``: two schemes, as posenc compare takes them; what is told is the first's loss less the second's;
- ``length``: the bytes of the windows on which both were tested; they were trained on 128;
- ``published``: {``claim`` in words, ``verdict``, ``source``, ``url``}, the verdict one of "lower", "higher", "tied";
- ``ours``: by text what was found, each null until it is measured, or {``status``: "not run", ``why``}, or
  {``status``: "measured", ``mean``, ``low``, ``high``, ``verdict``, ``seeds``, ``agrees``}: the mean difference in bits
  per byte and its 95 % interval, "lower", "higher", "tied" or "undecided", the number of seeds, and "yes", "no" or
  "undecided", by the rule of `posenc.tools.choose.evidence.agrees`.

What is otherwise is a ValueError that names the claim, the text and what is wrong.
"""
