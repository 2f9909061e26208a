"""Create the table of the outbox."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first version."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", models.CharField(max_length=80)),
                ("body", models.BinaryField()),
                ("headers", models.TextField()),
                ("message_id", models.CharField(max_length=128, unique=True)),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
            options={"db_table": "lapwing_outbox", "ordering": ["id"]},
        )
    ]
