"""Pages as readable text, whatever they hold."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.base.html import readable

PAGE = """<!DOCTYPE html><html><head><title> The  &lt;Page&gt; </title><style>p { color: red }</style></head>
<body><nav><a href="/">Home</a><ul><li>menu</ul></nav>
<script>if (a < b) { document.write("</p>") }</script>
<h1>Heading</h1><p>Some <b>bold</b>
   text &amp; a <a href="../next?a=1&amp;b=2" title="x > y">link</a>.</p>
<!-- a comment > -->
<ul><li>one</li><li>two<br>more</li></ul>
<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>
<pre>keep
   this</pre><img src="x.png" alt="A cat"><a href="#top">up</a><a href="javascript:x()">do</a>
<footer>imprint</footer></body></html>"""

TEXT = """# Heading

Some bold text & a [link](https://example.org/a/next?a=1&b=2).

- one
- two
more

a | b
1 | 2

```
keep
   this
```

[picture: A cat]updo"""


def test_a_page_is_what_a_person_would_read():
    page = readable(PAGE, "https://example.org/a/b/")
    assert page.title == "The <Page>"
    assert page.text == TEXT


def test_the_main_part_is_preferred_when_there_is_one():
    article = "<p>" + "What it is about. " * 40 + "</p>"
    page = readable(f"<div>Login Register Cookies</div><main>{article}</main><div>Related</div>")
    assert page.text.startswith("What it is about.") and "Cookies" not in page.text and "Related" not in page.text
    assert "Cookies" in readable("<div>Cookies</div><main>short</main>").text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a < b and c > d", "a < b and c > d"),
        ("no tags", "no tags"),
        ("<p>open <b>never closed", "open never closed"),
        ("x<!-- never closed <p>y", "x"),
        ("x<script>never closed", "x"),
        ("<head><title>t</title><p>a head without an end", "a head without an end"),
        ("tail <a href=", "tail <a href="),
        ("<a href='http://[bad'>text</a>", "[text](http://[bad)"),
        ("<A HREF=http://x/>Text</A>", "[Text](http://x/)"),
        ("&#x41;&amp;&nosuch;&#xD800;", "A&&nosuch;\ufffd"),
        ("&#" + "1" * 5_000 + ";", "&#" + "1" * 5_000 + ";"),
        ("<p></p><p></p>\n\n<div> </div>x", "x"),
    ],
)
def test_pages_that_are_no_good_html_are_read_as_far_as_they_go(page: str, text: str):
    assert readable(page).text == text


@given(st.text(alphabet=st.sampled_from("<>/!-'\"=ap scriptnvlHREF&#;\n"), max_size=80))
def test_no_page_breaks_the_reader(page: str):
    assert readable(page, "https://example.org/").text is not None


EVIL = [
    "<!--",
    "<a ",
    "<![x",
    '<a a="',
    "</",
    "<?",
    "<a b=c",
    "<script>",
    "<a href=",
    "<",
    "<a a='>\"",
    "<p><a>",
    "<svg>",
]


@pytest.mark.parametrize("unit", EVIL)
def test_the_time_grows_with_the_length_only(unit: str):
    def seconds(size: int) -> float:
        began = time.thread_time()
        readable(unit * (size // len(unit)), "https://example.org/")
        return time.thread_time() - began

    seconds(1_000)
    assert seconds(200_000) < 30 * max(seconds(20_000), 0.002)
