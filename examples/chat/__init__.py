"""A chat over HTTP whose replies survive a reload, another device, a stop button and a killed server.

Run it with `python -m examples.chat`, and open the page in two tabs. `app` is the whole server: four routes,
and one worker that writes the replies. `page.html` is the whole client. There is no broker and no second
database: both tabs follow the conversation itself.
"""
