"""Faults of vision packages that were read in their code, and that no check finds as their models are called."""

from field.kinds import LIMIT, WRONG, Fault

FAULTS_VISION = (
    # -- vit-pytorch ---------------------------------------------------------------------------------------------------
    Fault(
        "vit-pytorch-crossformer-offsets.py",
        "vit-pytorch: CrossFormer's bias is that of other offsets",
        WRONG,
        "The dynamic position bias of offsets from −w to w is laid out in rows of 2w + 1, and looked up in rows of "
        "2w − 1. Every offset still has a number of its own, but the network that makes it is told another one: a "
        "patch and itself are (−2, 2) apart in a window of 3, and what is learned of distances does not hold.",
        "`crossformer.py`, lines 115 and 146",
        "let `pos` go from `1 - wsz` to `wsz`, exclusive.",
        package="vit-pytorch",
    ),
    Fault(
        "vit-pytorch-nest-positions.py",
        "vit-pytorch: the layers of NesT do not see its positions",
        WRONG,
        "A position is one number, added to all channels of a patch. The norms before attention and before the "
        "feed-forward layer subtract the mean over the channels, and so take it away exactly; the paper adds a vector "
        "per patch. Only the convolution between two levels sees it.",
        "`nest.py`, lines 87 and 97-99",
        "make `pos_emb` a parameter of (channels, patches) of each `Transformer`, and add it in its place.",
        package="vit-pytorch",
    ),
    Fault(
        "vit-pytorch-masked-pretraining.py",
        "vit-pytorch: MAE, SimMIM and MPP do not run on its ViT",
        WRONG,
        "The table of positions is (patches, channels) and the class token (1, channels); these still take them for "
        "(1, patches, channels) and (1, 1, channels), so that they slice the channels. The examples of the README end "
        'in an error. MAE runs with `pool="mean"`.',
        "`mae.py`, line 53; `simmim.py`, line 46; `mpp.py`, lines 161 and 165",
        "index the table without its first axis.",
        package="vit-pytorch",
    ),
    Fault(
        "vit-pytorch-oblong-images.py",
        "vit-pytorch: ViT-5 and RvT rotate patches as if every image were square",
        WRONG,
        "The sides of the grid are taken from the square root of the number of patches, although `image_size` may be a "
        "pair in ViT-5 and RvT measures each image. Most oblong images are an error; where the product is a square "
        "number, such as 2 × 8, patches silently stand elsewhere.",
        "`vit_5.py`, line 66; `rvt.py`, line 29",
        "hand the grid's height and width to the rotation.",
        package="vit-pytorch",
    ),
    Fault(
        "vit-pytorch-pope-bias.py",
        "vit-pytorch: PoPE's learned bias cannot begin uniform",
        WRONG,
        "`pope_init_learned_bias_uniform=True` writes into a parameter outside of `no_grad`, which is an error.",
        "`vit_nd_pope.py`, line 84",
        "`nn.init.uniform_(model.polar_emb.learned_bias, -2 * pi, 0)` after building.",
        package="vit-pytorch",
    ),
    Fault(
        "vit-pytorch-navit-training.py",
        "vit-pytorch: NaViT of nested tensors cannot be trained with its default",
        WRONG,
        "`token_dropout_prob` is None by default, and compared with 0 in training: an error. The version for video has "
        "the same line.",
        "`na_vit_nested_tensor.py`, line 237; `na_vit_nested_tensor_3d.py`, line 252",
        "`token_dropout_prob=0.`.",
        package="vit-pytorch",
    ),
    Fault(
        "vit-pytorch-causal-class-token.py",
        "vit-pytorch: ViTND's class token carries later patches to earlier ones",
        LIMIT,
        "With `causal_dims` the class token sees all and is seen by all, as the comment says. From the second layer on "
        "earlier frames therefore know later ones. The video model of `levjepa.py` does not let others see the token.",
        "`vit_nd_masking.py`, line 39",
        "`vit_nd_rotary.py`, which has no class token.",
        package="vit-pytorch",
    ),
    # -- timm ----------------------------------------------------------------------------------------------------------
    Fault(
        "timm-attention-bias-cache.py",
        "timm: LeViT and its like keep the bias of weights that were replaced",
        WRONG,
        "In evaluation mode the bias is remembered by device. Only `train()` and moving the module forget it, so that "
        "`load_state_dict` after a call has no effect on positions, and copying such a model or two backward passes "
        "are errors. LeViT, TinyViT, EfficientFormer v1 and v2, EfficientViT of MSRA.",
        "`models/levit.py`, line 305, and the same method of the others",
        "call `model.train()` and then `model.eval()` after loading.",
        package="timm",
    ),
    Fault(
        "timm-sincos-reverse.py",
        "timm: build_sincos2d_pos_embed(reverse_coord=True) reorders patches instead of coordinates",
        WRONG,
        "It is to stack columns before rows. The sizes are exchanged before the grid is made, so that rows of the "
        "table go by columns: a square has the same table with and without, and patches of an oblong grid get those "
        "of other places.",
        "`layers/pos_embed_sincos.py`, lines 68-69",
        "exchange the halves of the channels of a plain table.",
        package="timm",
    ),
    Fault(
        "timm-convit-oblong.py",
        "timm: ConViT takes every grid for a square",
        WRONG,
        "The side is the square root of the number of patches, although `img_size` may be a pair: an error for most "
        "sizes, and other offsets where the product is a square number.",
        "`models/convit.py`, line 126",
        "square images.",
        package="timm",
    ),
    Fault(
        "timm-fourier-bfloat16.py",
        "timm: FourierEmbed rounds its frequencies in bfloat16",
        WRONG,
        "Its bands, up to π · 112, are a buffer that is cast with the module. The rotations of the same file hold "
        "theirs at float32 or above, and say why.",
        "`layers/pos_embed_sincos.py`, lines 392 and 403",
        "keep the module in float32.",
        package="timm",
    ),
    Fault(
        "timm-halo-stride.py",
        "timm: HaloAttn with stride 2 learns other offsets than those in pixels",
        LIMIT,
        "Queries of every second pixel are numbered 0, 1, 2, … when their offsets to keys are counted, which are "
        "pixels apart. The same offset has another vector for every query of a block. A comment doubts the stride. "
        "With `avg_down=True` queries are not strided, and it is right.",
        "`layers/halo_attn.py`, lines 179 and 188",
        "`avg_down=True`.",
        package="timm",
    ),
    Fault(
        "timm-log-coords-one.py",
        "timm: RelPosMlp of mode swin is NaN for windows of one row or column",
        WRONG,
        "Offsets are divided by the side less one, 0 / 0. Swin v2 of the same package has the guard.",
        "`layers/pos_embed_rel.py`, lines 406-410",
        'windows of at least 2 × 2, or `mode="cr"`.',
        package="timm",
    ),
    Fault(
        "timm-naflex-order.py",
        "timm: NaFlex takes learned positions by the index of a patch",
        LIMIT,
        "Of the coordinates it is given, only the greatest count, as the size of a grid whose patches are all there in "
        "raster order. Its loader makes such rows. `pos_embed_use_grid_sample=True` goes by the coordinates.",
        "`models/naflexvit.py`, lines 692 and 820",
        "`pos_embed_use_grid_sample=True`.",
        package="timm",
    ),
    # -- diffusers -----------------------------------------------------------------------------------------------------
    Fault(
        "diffusers-rotary-crops.py",
        "diffusers: rotary positions of a crop are squeezed",
        WRONG,
        "Positions are to be those of `linspace(start, stop, endpoint=False)`, as a comment says, but end at "
        "stop · (n − 1)/n, which is right for a start of 0 alone. Crops that begin elsewhere, which Hunyuan-DiT, "
        "CogVideoX and EasyAnimate ask for in images of another shape than the base, have patches less than 1 apart.",
        "`models/embeddings.py`, lines 673-676, 753-756 and 803-806",
        "`linspace(start, stop - (stop - start) / n, n)`.",
        package="diffusers",
    ),
    Fault(
        "diffusers-patch-embed-oblong.py",
        "diffusers: PatchEmbed for an oblong image has the table of a square",
        WRONG,
        "The side of the table is the square root of the number of patches. Images of the size that the module was "
        "made for get it: an error, or other positions than the same image gets from a module of another size.",
        "`models/embeddings.py`, line 319",
        "make it for a square size; other sizes are computed when they come.",
        package="diffusers",
    ),
    Fault(
        "diffusers-sana-wm-split.py",
        "diffusers: SANA-WM ignores fhw_dim when it divides channels",
        WRONG,
        "The table is made by `fhw_dim`, and cut by the default division: frames, rows and columns get channels of "
        "each other. The models of the package do not set it.",
        "`models/transformers/transformer_sana_wm.py`, lines 485-487",
        "leave `fhw_dim` None.",
        package="diffusers",
    ),
    Fault(
        "diffusers-chronoedit-split.py",
        "diffusers: ChronoEdit divides channels in two ways",
        WRONG,
        "Tables have 2 ⌊d/6⌋ channels for rows and columns, and are cut at ⌊d/3⌋, which is odd for heads of 64, so "
        "that a pair of channels turns by two positions. Heads of 128, the published size, are right; Wan, where it "
        "comes from, has been mended.",
        "`models/transformers/transformer_chronoedit.py`, lines 404-408",
        "heads whose size leaves 0 or 2 when divided by 6.",
        package="diffusers",
    ),
    Fault(
        "diffusers-auraflow-wide.py",
        "diffusers: AuraFlow answers for latents that are wider than its table",
        WRONG,
        "The centre of the table is cut out by indices. Where the latent is wider than the table these run into the "
        "rows above and below, without an error as long as it is not higher too; `PatchEmbed` refuses such sizes.",
        "`models/transformers/auraflow_transformer_2d.py`, lines 80-91",
        "latents of at most √pos_embed_max_size patches on each side.",
        package="diffusers",
    ),
    Fault(
        "diffusers-sincos-cls-token.py",
        "diffusers: cls_token=True adds no row",
        WRONG,
        "The documentation gives 1 + grid_size² rows. The row is added only if `extra_tokens` is above 0, and then "
        "that many are.",
        "`models/embeddings.py`, line 195",
        "`cls_token=True, extra_tokens=1`.",
        package="diffusers",
    ),
    Fault(
        "diffusers-rotary-cache-inference.py",
        "diffusers: rotations remembered in inference mode cannot be trained with",
        LIMIT,
        "LongCat AudioDiT and MiniMax Music 3 remember cosines and sines by length and device. Those made in inference "
        "mode cannot be part of a graph later.",
        "`models/transformers/transformer_longcat_audio_dit.py`, line 71; `transformer_minimax_music3.py`, line 50",
        "`torch.no_grad()` in place of inference mode.",
        package="diffusers",
    ),
    # -- open_clip -----------------------------------------------------------------------------------------------------
    Fault(
        "open-clip-resize-same-count.py",
        "open_clip: a table with as many rows for another shape is not resized",
        WRONG,
        "Whether to resize goes by the number of patches. A table for 8 × 8 is taken for 4 × 16 as it is, so that two "
        "rows of the one become a row of the other.",
        "`model.py`, line 800",
        "resize the table yourself before loading.",
        package="open_clip_torch",
    ),
)
