"""The names of the HPatches release: its 116 sequences, and the sequences that its splits a, b and c keep for testing.

Of each split the other 76 sequences are for training. The benchmark's further splits need no list: `illum` tests on all
i_ sequences (57), `view` on all v_ sequences (59), `full` on all 116.
"""

from __future__ import annotations

_SEQUENCES = """
    i_ajuntament i_autannes i_bologna i_books i_boutique i_bridger i_brooklyn i_castle i_chestnuts i_contruction
    i_crownday i_crownnight i_dc i_dome i_duda i_fenis i_fog i_fruits i_gonnenberg i_greenhouse i_greentea
    i_indiana i_kions i_ktirio i_kurhaus i_leuven i_lionday i_lionnight i_londonbridge i_melon i_miniature
    i_nescafe i_nijmegen i_nuts i_objects i_parking i_partyfood i_pencils i_pinard i_pool i_porta i_resort
    i_salon i_santuario i_school i_ski i_smurf i_steps i_table i_tools i_toy i_troulos i_veggies i_village
    i_whitebuilding i_yellowtent i_zion v_abstract v_adam v_apprentices v_artisans v_astronautis v_azzola v_bark
    v_bees v_beyus v_bip v_bird v_birdwoman v_blueprint v_boat v_bricks v_busstop v_calder v_cartooncity
    v_charing v_churchill v_circus v_coffeehouse v_colors v_courses v_dirtywall v_dogman v_eastsouth v_feast
    v_fest v_gardens v_grace v_graffiti v_home v_laptop v_london v_machines v_man v_maskedman v_pomegranate
    v_posters v_samples v_soldiers v_strand v_sunseason v_tabletop v_talent v_tempera v_there v_underground
    v_vitro v_wall v_wapping v_war v_weapons v_woman v_wormhole v_wounded v_yard v_yuri
"""

_TEST_A = """
    i_ajuntament i_autannes i_bologna i_books i_bridger i_brooklyn i_fog i_fruits i_kurhaus i_lionnight
    i_nijmegen i_porta i_resort i_salon i_santuario i_table i_tools i_troulos i_whitebuilding i_zion
    v_abstract v_azzola v_bees v_birdwoman v_busstop v_coffeehouse v_courses v_eastsouth v_feast v_fest
    v_man v_pomegranate v_soldiers v_strand v_tabletop v_talent v_underground v_woman v_yard v_yuri
"""
_TEST_B = """
    i_autannes i_bridger i_castle i_chestnuts i_dome i_duda i_fog i_fruits i_greenhouse i_kions
    i_kurhaus i_lionday i_melon i_partyfood i_pencils i_porta i_resort i_school i_ski i_village v_adam
    v_apprentices v_astronautis v_bees v_bip v_birdwoman v_charing v_churchill v_colors v_feast
    v_graffiti v_laptop v_london v_posters v_sunseason v_there v_underground v_war v_woman v_yard
"""
_TEST_C = """
    i_bologna i_boutique i_castle i_crownnight i_dc i_fog i_kions i_leuven i_londonbridge i_melon
    i_nijmegen i_parking i_partyfood i_pool i_ski i_smurf i_steps i_table i_tools i_troulos v_adam
    v_artisans v_azzola v_bees v_blueprint v_busstop v_coffeehouse v_dirtywall v_feast v_gardens
    v_graffiti v_machines v_man v_maskedman v_pomegranate v_talent v_tempera v_war v_weapons v_wounded
"""

SEQUENCES = tuple(_SEQUENCES.split())
TEST = {"a": frozenset(_TEST_A.split()), "b": frozenset(_TEST_B.split()), "c": frozenset(_TEST_C.split())}
