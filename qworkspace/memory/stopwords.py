"""English words that carry no topic. "may" and "will" as a month and a name stay searchable through "may"."""

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
