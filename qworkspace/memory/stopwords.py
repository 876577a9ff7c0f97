"""Words that carry no topic.

English ones are left out of notes and questions; "may" and "will" as a month and a name stay searchable through "may".
Those that ask in Chinese, Japanese and Korean are left out of questions only: they are rare in notes, and any note that
has one (of interview questions, say) would come first.
"""

import re

_WORDS = """
a about above after again against all am an and any are aren as at be because been before being below between both
but by can cannot could couldn d did didn do does doesn doing don down during each few for from further had hadn
has hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll
m me might more most must mustn my myself no nor not now of off on once only or other our ours ourselves out over
own re s same she should shouldn so some such t than that the their theirs them themselves then there these they
this those through to too under until up ve very was wasn we were weren what when where which while who whom whose
why will with won would wouldn you your yours yourself yourselves
"""
STOPWORDS = frozenset(_WORDS.split())

_ASKING = """
什么时候 什么地方 什么样 为什么 什么 怎么样 怎么办 怎么 怎样 如何 多少 多久 多长时间
哪里 哪儿 哪个 哪些 哪天 哪位 哪家 哪
几点 几个 几号 谁 吗
什麼時候 什麼地方 為什麼 什麼 怎麼樣 怎麼辦 怎麼 怎樣 多長時間 哪裡 哪裏 哪個 幾點 幾個 幾號 誰 嗎
いつ どこ だれ いくつ どれ どんな どちら なぜ 何時 何日 ですか ましたか ますか でしたか
언제 어디 누구 무엇 무슨 얼마 어떤 어떻게 나요 까요 습니까
"""
_ASKS = re.compile("|".join(sorted(_ASKING.split(), key=len, reverse=True)))


def without_asking(question: str) -> str:
    """The question without the words that ask in Chinese, Japanese and Korean."""
    return question if question.isascii() else _ASKS.sub(" ", question)
