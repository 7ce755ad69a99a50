"""Django: submit a task inside `transaction.atomic`. It exists only if the transaction commits.

    pip install django 'psycopg[binary]'
    export FLOWFABRIC_DATABASE_URL=postgresql://localhost/shop
    cd examples && flowfabric worker django_app:app & python django_app.py

This one file contains the parts of a project: settings.py, tasks.py and a view.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.db import connection, transaction
from psycopg.conninfo import conninfo_to_dict

from flowfabric import App

app = App()

# settings.py
address = conninfo_to_dict(os.environ["FLOWFABRIC_DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": address.get("host"),
            "PORT": address.get("port"),
            "USER": address.get("user"),
            "PASSWORD": address.get("password"),
            "NAME": address["dbname"],
        }
    }
)
django.setup()


# tasks.py
@app.task
def send_invoice(number: int) -> str:
    return f"invoice {number} sent"


# A view: plain synchronous Django code.
def order(number: int, *, is_paid: bool) -> str:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("insert into shop_order (number) values (%s)", [number])
        run = send_invoice.using(via=connection).submit_sync(number)
        if not is_paid:
            raise ValueError(f"order {number} is not paid")
        return run.id


def main() -> None:
    with connection.cursor() as cursor:
        cursor.execute("create table if not exists shop_order (number integer primary key)")
        cursor.execute("truncate shop_order")
    run = app.get(order(1, is_paid=True))
    print(run.result_sync(timeout=60))
    try:
        order(2, is_paid=False)
    except ValueError as error:
        print(f"{error}: neither the order nor its invoice is there")


if __name__ == "__main__":
    main()
