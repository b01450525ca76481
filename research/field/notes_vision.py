"""What is known of the findings in vision packages."""

from field.kinds import LIMIT, MEANT, TIDY, WRONG, Note

NOTES_VISION = (
    Note(
        "of_vit_pytorch",
        (4,),
        "vit-pytorch: frequencies of golden gate rotations are saved",
        TIDY,
        "`freqs` is a persistent buffer, so what a checkpoint holds overrules the configuration.",
        "`vit_nd_rotary.py`, line 74",
        ("golden_gate",),
        ("what is saved",),
    ),
    Note(
        "of_vit_pytorch",
        (1, 2, 4),
        "vit-pytorch: frequencies of rotations are cast with the model",
        WRONG,
        "Phases are computed in float32, but of a buffer that is cast with the module. Frequencies go up to 10,000 "
        "radians for each patch, so that the rounding is of many turns. PoPE and RvT have the same.",
        "`vit_nd_rotary.py`, line 74; `vit_nd_pope.py`, line 79; `rvt.py`, line 35",
        ("golden_gate",),
        script="vit-pytorch-bfloat16-frequencies.py",
        instead="keep the module in float32 under autocast; or smaller `rope_max_freq` and `pope_max_freq`.",
    ),
    Note(
        "of_vit_pytorch",
        (20,),
        "vit-pytorch: positions of NesT go by the index",
        LIMIT,
        "The table is one for the square blocks that the model cuts images into. Blocks of another shape are taken, "
        "and get its first numbers in raster order, so that 1 × 2 patches are those of 2 × 1. What its layers see of "
        "positions at all is told [below](#vit-pytorch-the-layers-of-nest-do-not-see-its-positions).",
        "`nest.py`, line 97",
        ("nest",),
    ),
    Note(
        "of_timm",
        (7,),
        "timm: a masked patch keeps its place",
        MEANT,
        "Rotations go by the grid, of which the attention around them hides patches. Those that are left stay where "
        "they were, as they must in an image; as a text without padding they would move together. In pixels, and for "
        "DINOv3, places are parts of the whole grid, and go by its size too.",
        trials=("with a mask alone",),
    ),
    Note(
        "of_timm",
        (20,),
        "timm: shifted windows see across the edge of a map that windows do not divide",
        WRONG,
        "Maps are shifted first and padded then, but the mask is made for maps that are padded first: what the shift "
        "moved from the top to the bottom lies in front of the padding, where the mask expects the map's own last "
        "rows. Swin, Swin v2 and Swin v2-CR; maps that the window divides are right.",
        "`models/swin_transformer.py`, lines 557-567; `models/swin_transformer_v2.py`, lines 504-513; "
        "`models/swin_transformer_v2_cr.py`, lines 442-453",
        ("swin",),
        script="timm-swin-shift-padding.py",
        instead="image sizes whose maps the windows divide at every stage.",
    ),
    Note(
        "of_diffusers",
        (7, 11, 19),
        "diffusers: OmniGen rotates a batch by the positions of its first row",
        WRONG,
        "Cosines and sines of the first row are returned for all. Prompts of other lengths are padded on the left, so "
        "that their positions differ from the first row's, and they come out other than alone.",
        "`models/transformers/transformer_omnigen.py`, line 174",
        ("omnigen",),
        script="diffusers-omnigen-rows.py",
        instead="one prompt at a time, of the length of what stands for no prompt.",
    ),
    Note(
        "of_diffusers",
        (5,),
        "diffusers: OmniGen writes its frequencies at every call",
        TIDY,
        "`inv_freq` is computed anew from the longest position of the batch, and assigned to the module. The next call "
        "computes its own, so that no output is wrong by it.",
        "`models/transformers/transformer_omnigen.py`, line 163",
        ("omnigen",),
    ),
    Note(
        "of_diffusers",
        (7,),
        "diffusers: a masked patch keeps its place",
        MEANT,
        "Rotations go by the grid, of which the attention around them hides patches. Those that are left stay where "
        "they were, as they must in an image; as a text without padding they would move together.",
        names=("one_frame", "frames", "cogview_4"),
        trials=("with a mask alone",),
    ),
    Note(
        "of_diffusers",
        (20,),
        "diffusers: CogView 4 rounds places to those of its training",
        MEANT,
        "Rows and columns are stretched to the size of the training grid and rounded down, as the published code does. "
        "Neighbours are therefore not all as far apart, unless the one size divides the other.",
        "`models/transformers/transformer_cogview4.py`, `CogView4RotaryPosEmbed.forward`",
        ("cogview_4",),
    ),
    Note(
        "of_diffusers",
        (1, 2, 4),
        "diffusers: Stable Audio 3 counts positions in bfloat16",
        WRONG,
        "Positions are made in the dtype of the frequencies, which are cast with the model. In bfloat16 positions past "
        "256 fall together.",
        "`models/transformers/transformer_stable_audio3.py`, line 106",
        ("audio",),
        ("angles", "late", "rotations", "outputs", "cast and back"),
        script="diffusers-stable-audio-3-bfloat16.py",
        instead="keep `rotary_pos_emb` in float32.",
    ),
    Note(
        "of_diffusers",
        (4,),
        "diffusers: frequencies of Stable Audio 3 are saved",
        TIDY,
        "`inv_freq` is a persistent buffer, as the published checkpoint has it, and overrules the configuration.",
        "`models/transformers/transformer_stable_audio3.py`, line 102",
        ("audio",),
        ("what is saved",),
    ),
    Note(
        "of_diffusers",
        (1, 2, 4),
        "diffusers: phases and frequencies in buffers are cast with the model",
        LIMIT,
        "Kandinsky 5 holds the phases of all positions in a buffer, and `.to(torch.bfloat16)` rounds them. "
        "`from_pretrained` leaves it in float32. Kandinsky 6, Ideogram 4 and MiniMax H3 have the like; for Ideogram 4, "
        "whose images begin at 65,536, `from_pretrained` does not help.",
        "`models/transformers/transformer_kandinsky.py`, line 219",
        ("text",),
        script="diffusers-rotary-buffers-bfloat16.py",
        instead="make the rotation anew in float32 after casting.",
    ),
    Note(
        "of_open_clip",
        (3,),
        "open_clip: the causal mask is not restored after a build on meta",
        LIMIT,
        "It is a buffer that no checkpoint holds and that only building fills, so that a text tower made on meta and "
        "given memory has what lay there before in its place.",
        "`transformer.py`, line 1022",
        ("text",),
    ),
)
