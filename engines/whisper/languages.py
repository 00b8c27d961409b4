"""Whisper's languages by their names.

The table of transformers says the same, and to import it costs a second and 40 MiB in every process.
"""

_NAMES = """
af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian,
bg bulgarian, bn bengali, bo tibetan, br breton, bs bosnian, ca catalan/valencian, cs czech, cy welsh,
da danish, de german, el greek, en english, es spanish/castilian, et estonian, eu basque, fa persian,
fi finnish, fo faroese, fr french, gl galician, gu gujarati, ha hausa, haw hawaiian, he hebrew,
hi hindi, hr croatian, ht haitian creole/haitian, hu hungarian, hy armenian, id indonesian,
is icelandic, it italian, ja japanese, jw javanese, ka georgian, kk kazakh, km khmer, kn kannada,
ko korean, la latin, lb luxembourgish/letzeburgesch, ln lingala, lo lao, lt lithuanian, lv latvian,
mg malagasy, mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese,
my myanmar/burmese, ne nepali, nl dutch/flemish, nn nynorsk, no norwegian, oc occitan,
pa punjabi/panjabi, pl polish, ps pashto/pushto, pt portuguese, ro romanian/moldavian/moldovan,
ru russian, sa sanskrit, sd sindhi, si sinhala/sinhalese, sk slovak, sl slovenian, sn shona, so somali,
sq albanian, sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik, th thai,
tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese,
yi yiddish, yo yoruba, yue cantonese, zh chinese/mandarin
"""
"""Each code with its English names, the usual one first."""

_CODES = {
    name: code
    for code, _, names in (entry.strip().partition(" ") for entry in _NAMES.split(","))
    for name in names.split("/")
}


def language_code(language: str) -> str:
    """Code of a language given by code ("de"), token ("<|de|>") or English name ("German").

    Raises:
      ValueError: not one of Whisper's languages.
    """
    name = language.strip().lower().removeprefix("<|").removesuffix("|>")
    if name in _CODES.values():
        return name
    if name in _CODES:
        return _CODES[name]
    raise ValueError(f"language is {language!r}: it must be a code such as 'de' or a name such as 'german'")
