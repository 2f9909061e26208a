"""The document of a page: what NiceGUI's script expects to find in it, each script and style with the page's nonce.

NiceGUI renders the template named `index.html` with the elements and the resources of a page. Ours takes the place of
its own, which knows no nonces. Of the parts that it could fill in, those are left out that no page of ours has.
"""

from typing import Final

from jinja2 import DictLoader
from nicegui.client import templates

_DOCUMENT: Final = """<!doctype html>
{% set nonce = request.state.nonce %}{% set assets = prefix + '/_nicegui/' + version %}
<html lang="{{ html_lang }}">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<meta name="viewport" content="{{ viewport }}">
<meta name="color-scheme" id="nicegui-color-scheme"
  content="{{ {'True': 'dark', 'False': 'light'}.get(dark, 'normal') }}">
<style nonce="{{ nonce }}">
@layer theme, base, quasar, nicegui, components, utilities, overrides, quasar_importants;
@import url("{{ assets }}/static/fonts.css") layer(base);
@import url("{{ assets }}/static/quasar.unimportant.prod.css") layer(quasar);
@import url("{{ assets }}/static/quasar.important.prod.css") layer(quasar_importants);
@import url("{{ assets }}/static/nicegui.css") layer(nicegui);
@layer quasar {
  blockquote, dd, dl, figure, h1, h2, h3, h4, h5, h6, hr, p, pre { margin: revert-layer }
  code, kbd, pre, samp { font-family: revert-layer }
}
</style>
<script nonce="{{ nonce }}" type="importmap">{"imports": {{ imports | safe }}}</script>
<script nonce="{{ nonce }}">
function addStyle(text) {
  const style = document.createElement("style");
  style.textContent = text;
  document.head.append(style);
}
</script>
{{ head_html | safe }}
{% for url in js_imports_urls %}<link rel="modulepreload" href="{{ url }}">
{% endfor %}
</head>
<body>
<div id="app"></div>
<div id="nicegui-keep-alive-cache" hidden></div>
<div id="popup" class="nicegui-error-popup" aria-hidden="true">
  <span>{{ translations.connection_lost }}</span> <span>{{ translations.trying_to_reconnect }}</span>
</div>
<div id="too_long_message_popup" class="nicegui-error-popup" aria-hidden="true">
  <span>{{ translations.message_too_long }}</span> <span>{{ translations.message_too_long_body }}</span>
</div>
<script nonce="{{ nonce }}" defer src="{{ assets }}/static/socket.io.min.js"></script>
<script nonce="{{ nonce }}" type="module">
import * as Vue from "vue";
globalThis.Vue = Vue;
</script>
{% for name in ("quasar.umd.prod", "nicegui", "lang/" + language + ".umd.prod") %}
<script nonce="{{ nonce }}" defer src="{{ assets }}/static/{{ name }}.js"></script>
{% endfor %}
<script nonce="{{ nonce }}" type="module">
import DOMPurify from "dompurify";
Element.prototype.setHTML = function (markup) { this.innerHTML = DOMPurify.sanitize(markup); };
const app = createApp(parseElements(String.raw`{{ elements | safe }}`), {
  version: "{{ version }}",
  prefix: "{{ prefix | safe }}",
  query: {{ socket_io_js_query_params | safe }},
  extraHeaders: {{ socket_io_js_extra_headers | safe }},
  transports: {{ socket_io_js_transports | safe }},
});
const dark = {{ dark }};
const language = "{{ language }}";
const vue_config = {{ vue_config | safe }};
{{ vue_config_script | safe }}
{{ js_imports | safe }}
app.mount("#app");
</script>
</body>
</html>
"""


def use_own_document() -> None:
    """Have NiceGUI render our document."""
    templates.env.loader = DictLoader({"index.html": _DOCUMENT})
